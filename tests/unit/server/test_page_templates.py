"""What holds for the templates of all pages."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable

import pytest

TEMPLATES = [
    file
    for file in files("thumbwheel.server.pages").joinpath("templates").iterdir()
    if file.name.endswith(".html")
]
FORM = re.compile(r"<form\b[^>]*>")


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda file: file.name)
def test_no_browser_sends_a_form_of_the_api_by_itself(template: Traversable) -> None:
    """Before its scripts are there, it would put the fields into the address: passwords too."""
    for form in FORM.findall(template.read_text()):
        assert "data-api=" not in form or 'method="dialog"' in form
