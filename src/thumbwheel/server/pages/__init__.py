"""The web pages. What lives here: `page.py` (what a page is), `page_table.py` (the table of all of
them), `routes.py` (their URLs behind the gate), `rendering.py` (templates, static files, headers),
`forms.py` (forms from config classes), `markdown.py` (text of models), a module for each
group of pages with their `load` functions, `templates/` and `static/`.

What does not: decisions and SQL. A `load` function calls the verbs of the stages and returns a
plain mapping for its template. Changes go through `/api`, sent by the scripts in `static/`.

To add a page:

1. Write its `load(asked: PageRequest) -> Mapping[str, Any]` in a module of its group.
2. Write `templates/NAME.html`: `{% extends "base.html" %}`, a block `content`, macros from
   `macros.html` (table, pager, badge, empty, dialog, config_form, text_block, ...).
3. Add a line to PAGES in `page_table.py`. With a `menu` it is in the navigation of whoever may.
4. Add its URL in the world of the tests to `tests/ui/page_urls.py`: it is then looked at by axe, in
   light and dark, narrow and wide, and with hostile content.

No inline script, style or handler works (Content-Security-Policy). A form or button changes
something by attributes alone, which `static/actions.js` acts on:

    <form method="dialog" data-api="POST /api/agents/support/loop" data-next="/agents/support/loop">
    <button data-api="DELETE /api/keys/app" data-confirm="Whoever uses this key is shut out.">

`method="dialog"` keeps a browser from sending the fields in the address before its scripts are
there.

Scripts of a page are ES modules: `{% block scripts %}<script type="module"
src="{{ static('rate.js') }}"></script>{% endblock %}`. They send by `send` of `api.js`, and
listen by `follow` of `events.js`.
"""
