"""What a server needs that renders and tokenizes the prompts of a version itself.

An adapter needs another chat template than its base's if training adapted it
(engine/adapted_template.py). And the server reads control tokens in every text, so the gateway has
to know them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thumbwheel.core import log
from thumbwheel.deploy.types import Package
from thumbwheel.engine.adapted_template import START, stored_template
from thumbwheel.engine.prompt import PromptBuilder
from thumbwheel.export.types import GGUF_ADAPTER
from thumbwheel.models.gguf.header import read_header
from thumbwheel.models.gguf.tokenizer import ENDS


def adapted_template_file(package: Package) -> Path | None:
    """Return the file of the chat template that training adapted; None if it did not adapt one."""
    template = stored_template(package.folder)
    file = package.folder / "chat_template.jinja"
    return file if template is not None and START in template and file.is_file() else None


def may_show_tools(package: Package) -> bool:
    """Return whether the chat template with which llama-server renders can show tools: one that
    never names them cannot."""
    file = adapted_template_file(package) if package.kind == GGUF_ADAPTER else None
    if file is not None:
        template = file.read_text(encoding="utf-8")
    else:
        weights = package.base if package.kind == GGUF_ADAPTER else package.model
        template = read_header(Path(str(weights))).metadata.get("tokenizer.chat_template") or ""
    return "tools" in str(template)


def control_token_details(package: Package) -> dict[str, Any]:
    """Return the details of an endpoint by which the gateway keeps control tokens out of the texts
    of a call: which there are, and the character that splits them."""
    from thumbwheel.engine.load import load_tokenizer

    builder = PromptBuilder(load_tokenizer(str(package.tokenizer)), settings=package.template)
    tokens = set(builder.control_tokens.ids)
    # llama.cpp reads these as control tokens even if the model's tokenizer does not
    tokens |= ENDS & set(builder.tokenizer.get_vocab())
    return {"control_tokens": sorted(tokens), "separator": builder.control_tokens.separator}


def tell_of_template(package: Package, server: str, fix: str) -> None:
    """Log a warning for an adapter whose chat template does not reach `server`."""
    if adapted_template_file(package) is not None:
        log.complain(
            f"{package.name} was trained with an adapted chat template (system messages, options "
            f"or the day), and {server} renders with the base's: its prompts differ. {fix}"
        )
