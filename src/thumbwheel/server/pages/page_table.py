"""Every page. A line here puts it behind the gate, into the navigation and before the tests."""

from __future__ import annotations

from thumbwheel.access.types import Verb
from thumbwheel.server.pages import (
    bases,
    datasets,
    experiments,
    first_visit,
    imports,
    jobs,
    loop,
    models,
    overview,
    people,
    playground,
    prompts,
    rating,
    replays,
    run_comparison,
    settings,
    traces,
    training,
)
from thumbwheel.server.pages.page import Load, Page

AGENT = "/agents/{agent}"


def _section(
    name: str, path: str, title: str, load: Load, menu: str | None, need: Verb = "read"
) -> Page:
    """Return a page with a place in the navigation, whose template has the same name."""
    return Page(name, path, need, title, f"{name.replace('-', '_')}.html", load, menu=menu)


def _detail(name: str, path: str, load: Load, below: str, need: Verb = "read") -> Page:
    """Return a page that the list `below` links to; `load` gives its title."""
    title = name.replace("-", " ").capitalize()
    return Page(name, path, need, title, f"{name.replace('-', '_')}.html", load, below=below)


PAGES: tuple[Page, ...] = (
    Page("home", "/", None, "Home", "home.html", overview.load_home, by_row=True),
    Page(
        "overview",
        AGENT,
        "read",
        "Overview",
        "home.html",
        overview.load_overview,
        menu="Overview",
    ),
    Page(
        "start",
        "/start",
        "run",
        "Add an agent",
        "start.html",
        first_visit.load_start,
        menu="Add an agent",
    ),
    Page(
        "import",
        "/import",
        "run",
        "Import a file",
        "import.html",
        imports.load_import,
        menu="Import",
        by_row=True,
    ),
    Page(
        "traces",
        "/agents/{agent}/traces",
        "read",
        "Traces",
        "traces.html",
        traces.load_list,
        menu="Traces",
    ),
    Page(
        "trace",
        "/agents/{agent}/traces/{trace}",
        "read",
        "Trace",
        "trace.html",
        traces.load_trace,
        below="traces",
    ),
    Page(
        "trace-lineage",
        "/agents/{agent}/traces/{trace}/lineage",
        "read",
        "Lineage of this answer",
        "trace_lineage.html",
        traces.load_lineage,
        below="traces",
    ),
    _detail("replay", f"{AGENT}/replays/{{replay}}", replays.load_replay, "traces"),
    _section("prompts", f"{AGENT}/prompts", "Prompts", prompts.load_prompts, "Prompts"),
    Page("rate", f"{AGENT}/rate", "rate", "Rate", "rate.html", rating.load_queues, menu="Rate"),
    _detail("bench", f"{AGENT}/rate/{{queue}}", rating.load_bench, "rate", "rate"),
    _detail("raters", f"{AGENT}/rate/{{queue}}/raters", rating.load_raters, "rate"),
    _section(
        "data-plan",
        f"{AGENT}/data",
        "Data plan",
        datasets.load_plan,
        "Data plan",
    ),
    _section("datasets", f"{AGENT}/datasets", "Datasets", datasets.load_list, "Datasets"),
    _detail("dataset", f"{AGENT}/datasets/{{dataset}}", datasets.load_dataset, "datasets"),
    _section("cases", f"{AGENT}/cases", "Cases", datasets.load_cases, "Cases"),
    _detail("case", f"{AGENT}/cases/{{case}}", datasets.load_case, "cases"),
    _section("runs", f"{AGENT}/runs", "Runs", training.load_runs, "Runs"),
    _detail("compare", f"{AGENT}/runs/compare", run_comparison.load_comparison, "runs"),
    _detail("run", f"{AGENT}/runs/{{run}}", training.load_run, "runs"),
    _detail("train", f"{AGENT}/train", training.load_training, "runs", "run"),
    _section("models", f"{AGENT}/models", "Models", models.load_list, "Models"),
    _detail("model", f"{AGENT}/models/{{version}}", models.load_model, "models"),
    _section(
        "evaluations", f"{AGENT}/evaluations", "Evaluations", models.load_evaluations, "Evaluations"
    ),
    _detail(
        "evaluation", f"{AGENT}/evaluations/{{version}}", models.load_evaluation, "evaluations"
    ),
    _section(
        "experiments", f"{AGENT}/experiments", "Experiments", experiments.load_list, "Experiments"
    ),
    _detail(
        "experiment",
        f"{AGENT}/experiments/{{experiment}}",
        experiments.load_experiment,
        "experiments",
    ),
    _detail(
        "experiment-start",
        f"{AGENT}/experiments/new",
        experiments.load_start,
        "experiments",
        "deploy",
    ),
    _section(
        "deployments", f"{AGENT}/deployments", "Deployments", models.load_deployments, "Deployments"
    ),
    _section(
        "playground",
        f"{AGENT}/playground",
        "Playground",
        playground.load_playground,
        "Playground",
        "rate",
    ),
    _section("loop", f"{AGENT}/loop", "Loop", loop.load_loop, "Loop"),
    _section("gate", f"{AGENT}/gate", "Gate", settings.load_gate, "Gate"),
    Page("jobs", "/jobs", "read", "Jobs", "jobs.html", jobs.load_list, menu="Jobs", by_row=True),
    _section("bases", "/bases", "Base models", bases.load_bases, "Base models", "run"),
    Page("job", "/jobs/{job}", "read", "Job", "job.html", jobs.load_job, below="jobs", by_row=True),
    _section("settings", "/settings", "Settings", settings.load_settings, "Settings", "own"),
    Page("keys", "/keys", "own", "Keys", "keys.html", people.load_keys, menu="Keys", by_row=True),
    Page(
        "secrets",
        "/secrets",
        "own",
        "Provider keys",
        "secrets.html",
        people.load_secrets,
        menu="Provider keys",
        by_row=True,
    ),
    Page(
        "users",
        "/users",
        "own",
        "Users",
        "users.html",
        people.load_users,
        menu="Users",
        by_row=True,
    ),
    _section("audit", "/audit", "Audit log", people.load_audit, "Audit log", "own"),
)
