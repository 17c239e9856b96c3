"""The sets of tests, by name, each with its reason.

`always` runs for every change: the fast tests, and the slow proofs of ALWAYS. `touched` runs where
a change reaches what they prove (tests/touched.py). `everything` is all of them but those of
ELSEWHERE, which need another machine or an hour of their own; `make test-all` runs it and writes
tests/last_full_run.json, from which `touched` counts. The tests of packages/ run only where a
change reaches them, the fast ones too. tests/selection.py gives pytest the option `--tests`; to add
a proof to `always`, list it in ALWAYS.
"""

from __future__ import annotations

ELSEWHERE = {
    "gpu": "needs CUDA or Metal: make test-gpu",
    "peers": "installs servers of others: make test-peers",
    "openwebui": "installs seven gigabytes: make test-openwebui",
    "repeat": "the long form of what a test of `everything` proves in short: make test-repeat",
}
"""Marker -> why its tests are in no set, and the command that runs them."""

BY_TOUCH = ("slow", "ui", "postgresql")
"""Markers of the tests that run where a change reaches them; `postgresql` also marks the twins of
the tests of stores that run on SQLite for every change."""

CHEAT = "tests/unit/sandbox/test_sandbox_verdicts.py::test_a_cheat_scores_nothing["
ALWAYS = {
    # what a newcomer types
    "tests/e2e/test_docs.py::test_a_page_runs[README.md]": "README runs as it is written",
    "tests/e2e/test_docs.py::test_a_page_runs[00-start.md]": "the start page runs as written",
    "tests/e2e/test_site.py::test_the_site_builds_and_every_link_leads_somewhere": (
        "the documentation builds offline, and no link of it leads nowhere"
    ),
    "tests/e2e/test_online_demo_whole.py": (
        "`demo --online` ends as it says; `demo` does the steps of README's page"
    ),
    "tests/ui/test_first_visit.py": "an empty home leads to a rated answer, by clicks alone",
    "tests/ui/test_team_lead.py": (
        "a team lead imports, rates, decides and is told of it, without a terminal"
    ),
    "tests/unit/server/test_start.py": "a server starts without what few requests need",
    "tests/e2e/test_startup.py": "a training child and the server of an adapter do, too",
    # the loop and what goes live
    "tests/e2e/test_cycle.py::test_a_turn_that_is_killed_at_each_step_ends_as_one_that_is_not": (
        "a killed cycle ends as one that was not killed"
    ),
    "tests/e2e/test_won_experiment.py": "a won experiment goes live, over a kill at each border",
    "tests/unit/deploy/test_serve.py::test_a_switch_loses_no_request_and_mixes_no_versions": (
        "an alias is switched under load"
    ),
    "tests/unit/deploy/test_switch.py::test_a_failed_canary_switches_nothing": "the canary holds",
    "tests/unit/deploy/test_switch.py::test_versions_go_live_stay_warm_and_come_back": "rollback",
    "tests/unit/deploy/test_approval.py::"
    "test_a_state_that_was_written_by_hand_lets_nothing_go_live": "approval cannot be forged",
    "tests/unit/evaluation/test_evaluate.py::"
    "test_a_taught_adapter_is_measured_and_approved_on_gold": "the gate sees a gain",
    "tests/unit/evaluation/test_evaluate.py::"
    "test_an_adapter_that_changes_nothing_gains_nothing_and_is_rejected": "and no gain",
    "tests/unit/evaluation/test_evaluate.py::test_what_training_saw_is_no_case": (
        "no evaluation on what was trained"
    ),
    "tests/unit/benchmarks/test_experiments.py::"
    "test_the_whole_controller_promotes_nothing_without_a_gain": "no experiment wins by chance",
    # training
    "tests/unit/training/test_parity_trl.py": "losses and gradients are those of TRL",
    "tests/unit/training/test_grpo_parity.py": "GRPO's are TRL's, too",
    "tests/unit/training/test_ppo_parity.py": "PPO equals a straight-line loop",
    "tests/e2e/test_resume.py::test_killed_interrupted_and_resumed_is_the_same_curve": (
        "a killed run that is resumed has the same curve"
    ),
    "tests/unit/training/test_train.py::test_the_command": "a run from the command line",
    "tests/contract/test_algorithms.py": "each method trains, resumes, and is loaded by PEFT",
    # export
    "tests/unit/export/test_export_gguf.py::test_kl_rises_over_the_ladder": "GGUF precisions",
    "tests/contract/test_formats.py::test_what_is_written_is_the_trained_model[qwen2-": (
        "what is written is the trained model"
    ),
    # jobs
    "tests/store/test_workers.py::"
    "test_nothing_of_a_zombie_lands_and_its_job_is_taken_over_after_a_lease": (
        "a zombie's effects are refused, and its job is taken over"
    ),
    "tests/store/test_workers.py::"
    "test_a_server_that_is_killed_takes_its_workers_along_and_the_next_one_goes_on": "takeover",
    "tests/e2e/test_jobs.py::"
    "test_a_training_that_is_cancelled_and_killed_on_every_level_keeps_its_curve": (
        "a job that is cancelled and killed goes on where it was"
    ),
    # data at rest
    "tests/e2e/test_erasure.py": "after an erasure no byte of the subject is left",
    "tests/unit/erasure/test_erase.py::test_the_others_keep_every_byte": "nor one of others gone",
    "tests/store/test_moving_homes.py::test_a_backup_is_the_home_as_it_was": (
        "a backup is restored, on both databases"
    ),
    "tests/store/test_inbox.py::test_fifty_killed_apps_lose_nothing_that_was_acknowledged": (
        "acknowledged means on disk"
    ),
    "tests/store/test_database.py::test_what_was_acknowledged_survives_kill_9": (
        "the smoke test of PostgreSQL: what it acknowledged survives kill -9"
    ),
    "tests/unit/erasure/test_erase.py::test_nothing_is_left_in_postgresql": (
        "erasure on the other database"
    ),
    # the wall
    # of the candidates that cheat, one of each kind
    CHEAT + "leaves with 0 at once": "who ends the process has not passed",
    CHEAT + "prints passed-": "nor who says so",
    CHEAT + "an object equal to everything": "nor whose answer equals everything",
    CHEAT + "patched builtins": "nor who changes the language",
    CHEAT + "writes a verdict itself": "nor who speaks for the judge",
    CHEAT + "reads frames": "nor who looks for the tests",
    CHEAT + "kills its parent": "nor who kills the judge",
    CHEAT + "never answers": "nor who never answers",
    "tests/unit/sandbox/test_sandbox_as_user.py": "the sandbox holds as an ordinary user",
    "tests/unit/server/test_openapi.py": "the API keeps to its document",
    "tests/attacks/test_slow_clients.py": "slow clients keep nobody out of any listener",
    "tests/unit/capture/test_redaction.py::"
    "test_strict_lets_no_byte_of_a_secret_into_any_file": "redaction",
}
"""Beginning of a test's name -> what is proved by it for every change."""

OUTSIDE = {
    "benchmarks/": "tests/unit/benchmarks/",
    "gpu/": "tests/unit/benchmarks/test_gpu_kit.py",
    "packaging/": "tests/unit/server/test_packaging.py",
    "tests/third_party/": "tests/e2e/test_third_party.py",
    "docs/01-tutorial.md": "tests/e2e/test_tutorial.py",
    "docs/examples/": "tests/e2e/test_tutorial.py",
    "packages/thumbwheel-compat/pyproject.toml": "packages/thumbwheel-compat/",
    "pyproject.toml": "",
    "constraints.txt": "",
    "install.py": "",
    "conftest.py": "",
}
"""Beginning of a file's path outside of `src` -> beginning of the names of the tests that a change
of it reaches. A page of the docs reaches the test that runs it, a test itself, and a module of
the tests those that import it."""

PACKAGES = "packages/"
"""Beginning of the names of the tests of distributions beside the core."""

TOUCHED_SECONDS = 200
"""Of slow tests that a change reaches, CI runs so many seconds' worth, nearest first; what does not
fit is left to `make test-touched` and `make test-all`."""
UNKNOWN_SECONDS = 10.0
"""A slow test counts so much until a full run has measured it."""
STALE_COMMITS = 30
"""After so many commits that touch `src` since the last full run, CI draws a third of all slow
tests instead, by the day of the commit."""
FAST_PROCESSOR_SECONDS = 0.5
"""A test that took more of the processor in the last full run is a slow one, with the marker or
without; other programs that were busy then do not change that."""
FAST_SECONDS = 5.0
"""So is a test that took longer, for whatever it waited."""
QUICK_SECONDS = 0.008
"""`quick` runs the files whose tests took no more of the processor than this on average in the last
full run."""


def is_always(name: str) -> bool:
    """Return whether the test of this name is one of the slow proofs that always run."""
    return any(name.startswith(beginning) for beginning in ALWAYS)
