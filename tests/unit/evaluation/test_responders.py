"""Sides: ours against a plain loop, a server, a GGUF file, what was recorded; and that nothing is
asked twice."""

import json
import signal

import pytest
import sqlalchemy as sa

from tests.judges import Flaky
from tests.worlds.feedback_world import AGENT
from tests.worlds.taught_world import PLACES, QUICK, add_case
from thumbwheel.core.errors import Conflict, DataError, InputError, ModelError
from thumbwheel.db import schema
from thumbwheel.evaluation import responder as asking
from thumbwheel.evaluation.compare import Rates, serving
from thumbwheel.evaluation.declaration import declare
from thumbwheel.evaluation.evaluate import evaluate
from thumbwheel.evaluation.gate import gate
from thumbwheel.evaluation.local_model import LocalModel, LocalResponder
from thumbwheel.evaluation.responders import base_of
from thumbwheel.evaluation.rows import gate_rows
from thumbwheel.evaluation.served import endpoint
from thumbwheel.evaluation.types import Ask, AskLikelihood, ModelAnswer
from thumbwheel.llm.fake import FakeServer, Reply
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, Basis, EndpointAddress, VersionState

ONLY = QUICK.model_copy(update={"suite": ("success",), "few_shot": 0})


def loaded(ws, name):
    version = versions.version(ws, AGENT, name)
    local_model = LocalModel(
        ws, base_of(ws, version), [version], QUICK.model_copy(update={"dtype": "float32"})
    )
    return local_model, local_model.responder(version)


def plain(model, builder, asked):
    """The summed log-probability of each text, one padded-free forward each, as transformers and
    PEFT compute it."""
    import torch

    sums = []
    for text in asked.texts:
        row = builder.row(asked.prompt, text)
        ids = torch.tensor([[*row.prompt_ids, *row.completion_ids]])
        with torch.no_grad():
            logs = model(input_ids=ids).logits[0, :-1].float().log_softmax(-1)
        picked = logs.gather(1, ids[0, 1:, None])[len(row.prompt_ids) - 1 :, 0]
        sums.append((float(picked.double().sum()), len(row.completion_ids)))
    return sums


def test_log_probabilities_are_those_of_a_plain_loop(home_with_feedback, taught):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    ws, add = home_with_feedback(cases=4)
    local_model, side = loaded(ws, add("good"))
    asks = [
        AskLikelihood(row.prompt, (row.text, "something else", '{"at":"yard"}'))
        for row in gate_rows(ws, versions.version(ws, AGENT, "v1")).recorded_answers
    ]
    asks = [*asks[:6], AskLikelihood([{"role": "user", "content": "Größe, 東京?"}], ("Yes.",))]
    reference = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(taught.base), taught.good
    ).eval()
    for asked, sums in zip(asks, side.log_probabilities(asks), strict=True):
        for (total, count), (wanted, tokens) in zip(
            sums, plain(reference, local_model.builder, asked), strict=True
        ):
            assert count == tokens and abs(total - wanted) / count < 1e-5
    base = local_model.responder(local_model.base)
    with reference.disable_adapter():
        for (total, _), (wanted, _) in zip(
            base.log_probabilities(asks[:1])[0],
            plain(reference, local_model.builder, asks[0]),
            strict=True,
        ):
            assert total == pytest.approx(wanted, abs=1e-4)
    assert base.identity != side.identity and base.scores


def test_text_that_stands_alone_and_text_that_does_not_fit(home_with_feedback):
    ws, add = home_with_feedback(cases=4)
    _, side = loaded(ws, add("good"))
    long = AskLikelihood([{"role": "user", "content": "word " * 3000}], ("x",))
    (alone,), refused = side.log_probabilities(
        [AskLikelihood([], ("The quick brown fox jumps.",)), long]
    )
    assert alone[1] > 3 and alone[0] < 0 and refused == ()


def test_an_evaluation_that_was_stopped_goes_on_where_it_was(home_with_feedback, monkeypatch):
    ws, add = home_with_feedback(cases=40)
    name, asked = add("good"), []
    answers = LocalResponder.answers

    def stop(self, asks):
        if len(asked) == 2:
            signal.raise_signal(signal.SIGINT)
        asked.append(len(asks))
        return answers(self, asks)

    monkeypatch.setattr(LocalResponder, "answers", stop)
    with pytest.raises(KeyboardInterrupt):
        evaluate(ws, versions.version(ws, AGENT, name), ONLY)
    assert asked == [16, 16]
    with ws.db.read() as connection:
        assert (
            connection.execute(sa.select(sa.func.count()).select_from(schema.answers)).scalar()
            == 32
        )
    again = []
    monkeypatch.setattr(
        LocalResponder, "answers", lambda self, asks: again.append(len(asks)) or answers(self, asks)
    )
    evaluation = evaluate(ws, versions.version(ws, AGENT, name), ONLY)
    assert again == [8, 16, 16, 8]  # the rest of the base, then the candidate
    monkeypatch.setattr(LocalResponder, "answers", None)
    more = evaluate(
        ws,
        versions.version(ws, AGENT, name),
        ONLY.model_copy(update={"examples": 1, "suite": ("success", "json_agent")}),
    )
    assert (
        more.primary.after == evaluation.primary.after == 1.0
    )  # another question about the same answers asks nothing
    assert [suite_result.name for suite_result in more.suites] == ["success", "json_agent"]


class Knows:
    """An endpoint that knows where everybody is, but not the dog."""

    def __call__(self, request):
        text = request.body["messages"][-1]["content"]
        content = PLACES["fox"] if "fox" in text else "I do not know."
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        return Reply(
            {
                "choices": [{"message": {"content": content}, "finish_reason": "stop"}],
                "usage": usage,
            }
        )


def test_an_endpoint_is_compared_by_quality_price_and_time(home_with_feedback):
    with FakeServer(Knows()) as server:
        ws, add = home_with_feedback(cases=34)
        name = add("good")
        endpoint = versions.add_endpoint(
            ws, AGENT, EndpointAddress(server.url, "large", price_in=2.0, price_out=10.0)
        )
        assert (
            versions.add_endpoint(
                ws, AGENT, EndpointAddress(server.url, "large", price_in=2.0, price_out=10.0)
            ).id
            == endpoint.id
            and endpoint.endpoint["price_out"] == 10.0
        )
        evaluation = evaluate(ws, versions.version(ws, AGENT, name), ONLY, against=endpoint)
        assert (evaluation.primary.before, evaluation.primary.after, evaluation.against) == (
            0.5,
            1.0,
            endpoint.name,
        )
        before, after = evaluation.serving
        assert before.cost == pytest.approx(1000 * (100 * 2 + 10 * 10) / 1e6) and after.cost is None
        assert before.seconds > 0 and before.tokens == 10 and before.answers == 34
        assert any("not served alike" in note for note in evaluation.notes)
        count = len(server.requests)
        evaluate(
            ws,
            versions.version(ws, AGENT, name),
            ONLY.model_copy(update={"examples": 2}),
            against=endpoint,
        )
        assert len(server.requests) == count == 34
        body = server.requests[0].body
        assert (body["temperature"], body["max_tokens"], body["model"]) == (0.0, 14, "large")
        priced = evaluate(
            ws,
            versions.version(ws, AGENT, name),
            ONLY.model_copy(update={"hour_price": 0.5}),
            against=endpoint,
        )
        assert (
            priced.serving[0].cost == before.cost
            and priced.serving[1].cost > 0
            and len(server.requests) == 34
        )


def test_a_question_that_a_server_refuses_costs_itself_only(home_with_feedback, capsys):
    def refuses(request):
        return (
            Reply("too long", status=400)
            if "101" in request.body["messages"][-1]["content"]
            else Knows()(request)
        )

    with FakeServer(refuses) as server:
        ws, add = home_with_feedback(cases=34)
        endpoint = versions.add_endpoint(ws, AGENT, EndpointAddress(server.url, "large"))
        name = add("good")
        evaluation = evaluate(ws, versions.version(ws, AGENT, name), ONLY, against=endpoint)
        assert evaluation.primary.n == 33 and evaluation.dropped == {"a side has no answer": 1}
    with FakeServer(lambda request: Reply("no such parameter", status=400)) as server:
        endpoint = versions.add_endpoint(ws, AGENT, EndpointAddress(server.url, "other"))
        with pytest.raises(DataError, match="34 x a side has no answer"):
            evaluate(ws, versions.version(ws, AGENT, name), ONLY, against=endpoint)
    assert "no such parameter" in capsys.readouterr().err


def test_what_answers_cost_by_the_hour_of_the_machine():
    answers = [ModelAnswer("x", "stop", 3, None, 4 * busy, busy=busy) for busy in (1.0, 3.0)]
    cost = lambda **rates: serving("v1", 1.0, answers, Rates(**rates)).cost  # noqa: E731
    assert cost(hour=3.6) == pytest.approx(2.0)
    assert (
        cost() is None and cost(tokens_in=1.0, tokens_out=1.0) is None
    )  # nobody counted the prompts


@pytest.mark.parametrize(
    ("path", "listed"),
    [
        ("/api/tags", lambda mark: {"models": [{"name": "tuned:latest", "digest": mark}]}),
        ("/v1/models", lambda mark: {"data": [{"id": "tuned", "created": 1, "root": mark}]}),
    ],
)
def test_another_model_behind_the_same_name_is_asked_anew(home_with_feedback, path, listed):
    with FakeServer(Knows()) as server:
        ws, add = home_with_feedback(cases=34)
        name = add("good")
        server.pages[path] = listed("one")
        first = evaluate(
            ws,
            versions.version(ws, AGENT, name),
            ONLY,
            against=versions.version(ws, AGENT, name),
            form=f"{server.url}#tuned",
        )
        assert (
            evaluate(
                ws,
                versions.version(ws, AGENT, name),
                ONLY,
                against=versions.version(ws, AGENT, name),
                form=f"{server.url}#tuned",
            ).id
            == first.id
        )
        assert len(server.requests) == 34
        server.pages[path] = listed("two")
        assert (
            evaluate(
                ws,
                versions.version(ws, AGENT, name),
                ONLY,
                against=versions.version(ws, AGENT, name),
                form=f"{server.url}#tuned",
            ).id
            != first.id
        )
        assert len(server.requests) == 68


@pytest.mark.slow
def test_a_candidate_as_it_is_served(home_with_feedback):
    with FakeServer(Knows()) as server:
        ws, add = home_with_feedback(cases=34)
        name = add("good")
        evaluation = evaluate(
            ws, versions.version(ws, AGENT, name), QUICK, form=f"{server.url}#tuned"
        )
        assert (evaluation.primary.before, evaluation.primary.after) == (0.0, 0.5)
        assert evaluation.preferences == () and any(
            "cannot say how likely" in note for note in evaluation.notes
        )
        same = evaluate(
            ws,
            versions.version(ws, AGENT, name),
            ONLY,
            against=versions.version(ws, AGENT, name),
            form=f"{server.url}#tuned",
        )
        assert (same.primary.before, same.primary.after) == (1.0, 0.5)  # trained against served
        with pytest.raises(InputError, match="gguf:FILE"):
            evaluate(ws, versions.version(ws, AGENT, name), ONLY, form="ggml:model.bin")


def test_what_the_app_recorded_is_a_side(home_with_feedback):
    def change(world):
        for number in (900, 901, 902):
            add_case(world, "fox", number)
        world.trace("old", world.prompt("fox 900"), PLACES["fox"])
        world.trace("older", world.prompt("fox 901"), "nowhere")

    ws, add = home_with_feedback(cases=0, prompts=8, change=change)
    evaluation = evaluate(
        ws,
        versions.version(ws, AGENT, add("good")),
        ONLY,
        against=versions.version(ws, AGENT, "v0"),
        against_form="recorded",
    )
    assert (evaluation.primary.n, evaluation.primary.before, evaluation.primary.after) == (
        2,
        0.5,
        1.0,
    )
    assert evaluation.dropped == {"a side has no answer": 1}
    assert evaluation.serving[0].side == "v0 as recorded"


def test_what_another_model_answered_is_not_this_ones_answer(home_with_feedback):
    def change(world):
        for number, model in (
            (900, "maker/large-2026-01-02"),
            (901, "small"),
            (902, None),
            (903, "large-mini"),
        ):
            add_case(world, "fox", number)
            world.trace(f"t{number}", world.prompt(f"fox {number}"), PLACES["fox"], model=model)

    ws, add = home_with_feedback(cases=0, prompts=8, change=change)
    name = add("good")
    endpoint = versions.add_endpoint(ws, AGENT, EndpointAddress("http://127.0.0.1:9/v1", "large"))
    evaluation = evaluate(
        ws, versions.version(ws, AGENT, name), ONLY, against=endpoint, against_form="recorded"
    )
    assert evaluation.primary.n == 2 and evaluation.dropped == {"a side has no answer": 2}


@pytest.mark.slow
def test_verdicts_are_kept_and_those_that_were_missing_are_asked_for_again(home_with_feedback):
    ws, add = home_with_feedback(cases=50)
    name = add("good")
    judge = Flaky(1_000)
    with FakeServer(judge) as server:
        config = QUICK.model_copy(
            update={
                "suite": ("success", "judge"),
                "few_shot": 0,
                "judge_url": server.url,
                "judge_model": "m",
            }
        )
        judge.until = 66  # the first chunk of 32 pairs, both orders each, and one pair
        unfinished = evaluate(ws, versions.version(ws, AGENT, name), config)
        assert any("judgements were blocked" in part for part in unfinished.notes)
        judge.until, judge.asked = 1_000, 0
        evaluation = evaluate(ws, versions.version(ws, AGENT, name), config)
        assert evaluation.id != unfinished.id and not any(
            "blocked" in part for part in evaluation.notes
        )
        pairs = next(part for part in evaluation.suites if part.name == "judge").measures[0].n
        assert 0 < judge.asked <= 2 * (pairs - 32)
        judge.asked = 0
        assert (
            evaluate(ws, versions.version(ws, AGENT, name), config).id == evaluation.id
            and judge.asked == 0
        )


@pytest.mark.slow
def test_a_decision_waits_for_a_judge_that_was_down(home_with_feedback):
    ws, add = home_with_feedback(cases=50)
    version = versions.version(ws, AGENT, add("good"))
    declare(ws, Agent.named(AGENT), {"primary": "judge", "min_cases": 2})
    judge = Flaky(66)
    with FakeServer(judge) as server:
        config = QUICK.model_copy(
            update={"few_shot": 0, "judge_url": server.url, "judge_model": "m"}
        )
        unfinished = evaluate(ws, versions.version(ws, AGENT, version.name), config)
        with pytest.raises(Conflict, match=r"judgements were blocked, and may be made yet.*500"):
            gate(ws, unfinished)
        assert versions.by_id(ws, version.id).state is VersionState.CANDIDATE
        judge.until = 1_000
        decided = gate(ws, evaluate(ws, versions.version(ws, AGENT, version.name), config))
    assert (decided.inputs.suite, decided.inputs.basis) == ("judge", Basis.FEEDBACK), (
        "most prompts are nobody's gold cases"
    )
    assert versions.by_id(ws, version.id).state is not VersionState.CANDIDATE


def test_several_samples_are_one_question(home_with_feedback):
    ws, add = home_with_feedback(cases=4)
    _, side = loaded(ws, add("good"))
    asks = [Ask([{"role": "user", "content": f"fox {n}"}], 6, 3, 1.0) for n in range(3)]
    groups = asking.ask(ws, Agent.named(AGENT).id, side, asks, "programs")
    assert [len(answer) for answer in groups] == [3, 3, 3] and len(
        {answer.text for group in groups for answer in group}
    ) > 3
    stored = asking.ask(ws, Agent.named(AGENT).id, side, asks[::-1], "programs")
    assert stored == groups[::-1]
    assert (
        json.loads(json.dumps(stored[0][0].ids))
        and endpoint("a", "http://h/v1", "m", None, 1, "mdl_1").identity != side.identity
    )


@pytest.mark.slow
def test_a_merged_folder_is_judged_as_its_users_load_it(home_with_feedback, taught, tmp_path):
    from thumbwheel.export.formats.merged import MERGED
    from thumbwheel.export.types import ExportSource

    (folder := tmp_path / "merged").mkdir()
    MERGED.write(ExportSource(str(taught.base), taught.good, "tiny"), folder)
    ws, add = home_with_feedback(cases=34)
    name = add("good")
    merged = evaluate(
        ws,
        versions.version(ws, AGENT, name),
        QUICK,
        against=versions.version(ws, AGENT, name),
        form=f"hf:{folder}",
    )
    assert (merged.form, merged.primary.changed, merged.primary.after) == (f"hf:{folder}", 0, 1.0)
    assert merged.preferences and abs(merged.preferences[0].gain) < 1e-9, (
        "a folder knows log-probabilities too"
    )
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4096] + bytes(4096))
    changed = evaluate(
        ws,
        versions.version(ws, AGENT, name),
        QUICK,
        against=versions.version(ws, AGENT, name),
        form=f"hf:{folder}",
    )
    assert changed.id != merged.id
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"rms_norm_eps": 0.5}))
    assert (
        evaluate(
            ws,
            versions.version(ws, AGENT, name),
            QUICK,
            against=versions.version(ws, AGENT, name),
            form=f"hf:{folder}",
        ).id
        != changed.id
    )
    with pytest.raises(ModelError, match="it holds an adapter: name its base"):
        evaluate(ws, versions.version(ws, AGENT, name), ONLY, form=f"hf:{taught.good}")


@pytest.mark.slow
def test_a_gguf_file_is_judged_as_llama_server_serves_it(home_with_feedback, taught, tmp_path):
    from tests.servers.llama_tools import needs
    from thumbwheel.export.formats.gguf import GGUF
    from thumbwheel.export.types import ExportSource

    needs("converter", "llama-server")
    (folder := tmp_path / "gguf").mkdir()
    GGUF.write(ExportSource(str(taught.base), taught.good, "tiny", "F16"), folder)
    file = next(folder.glob("*.gguf"))
    ws, add = home_with_feedback(cases=34)
    name = add("good")
    served = evaluate(ws, versions.version(ws, AGENT, name), ONLY, form=f"gguf:{file}")
    assert (served.primary.before, served.primary.after) == (0.0, 1.0)
    assert served.serving[1].side == f"v1 as gguf:{file}" and served.serving[1].seconds > 0
    same = evaluate(
        ws,
        versions.version(ws, AGENT, name),
        ONLY,
        against=versions.version(ws, AGENT, name),
        form=f"gguf:{file}",
    )
    assert same.primary.changed == 0  # what is served is what was trained
    with pytest.raises(InputError, match="no such file"):
        evaluate(ws, versions.version(ws, AGENT, name), ONLY, form="gguf:missing.gguf")
