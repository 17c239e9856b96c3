"""Formats that no source reads and that people try: what they are, and what to do instead. To add
one: a line in FOREIGN."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from thumbwheel.importers.messages import is_chat

Row = Mapping[str, Any]


def _is_bandit(row: Row) -> bool:
    propensity = {"propensity_score", "propensity", "pscore", "action_prob"} & row.keys()
    return bool(propensity and {"click", "reward"} & row.keys())


def _is_reference(row: Row) -> bool:
    return {"question_id", "choices", "model_id"} <= row.keys()


def _is_experiment(row: Row) -> bool:
    return {"experiment_id", "variant_id", "metric_id"} <= row.keys()


def _is_intent(row: Row) -> bool:
    return {"text", "intent"} == row.keys()


def _is_chatgpt(row: Row) -> bool:
    return isinstance(row.get("mapping"), dict) and "current_node" in row


def _is_chatgpt_feedback(row: Row) -> bool:
    return {"conversation_id", "user_id", "rating", "content"} <= row.keys()


def _is_claude(row: Row) -> bool:
    return {"chat_messages", "uuid"} <= row.keys()


def _is_langsmith(row: Row) -> bool:
    return {"run_id", "key", "score"} <= row.keys()


def _is_batch(row: Row) -> bool:
    return "custom_id" in row and bool({"response", "result"} & row.keys())


def _is_segments(row: Row) -> bool:
    segments = row.get("segments")
    first = segments[0] if isinstance(segments, list) and segments else None
    return isinstance(first, dict) and {"label", "text"} <= first.keys()


def _is_promptfoo(row: Row) -> bool:
    if {"evalId", "results"} <= row.keys():
        return True
    return {"promptIdx", "testIdx"} <= row.keys() or {"gradingResult", "vars"} <= row.keys()


def _is_kiln(row: Row) -> bool:
    return row.get("model_type") in ("task_run", "task") or {"v", "output", "input_source"} <= (
        row.keys()
    )


def _is_label_studio(row: Row) -> bool:
    return isinstance(row.get("data"), dict) and isinstance(row.get("annotations"), list)


def _is_leaderboard(row: Row) -> bool:
    names = {str(key).casefold() for key in row}
    return {"won", "lost", "rating"} <= names


def _is_librechat_message(row: Row) -> bool:
    return {"messageId", "isCreatedByUser", "conversationId"} <= row.keys()


def _is_phoenix_annotation(row: Row) -> bool:
    has_span = bool({"span_id", "context.span_id"} & row.keys())
    if "annotator_kind" in row and has_span and isinstance(row.get("result"), dict):
        return True
    return has_span and bool({"result.label", "result.score", "annotation_name"} & row.keys())


def _is_phoenix_evaluation(row: Row) -> bool:
    return "context.span_id" in row and "context.trace_id" not in row


def _is_pandas(row: Row) -> bool:
    """Return whether it is a whole table, column by column, as pandas writes one by default."""
    if {"columns", "data"} <= row.keys() <= {"columns", "index", "data"}:
        return True
    columns = list(row.values())
    if len(columns) < 2:
        return False
    if all(isinstance(column, dict) and "0" in column for column in columns):
        return True
    lengths = {len(column) for column in columns if isinstance(column, list)}
    are_lists = all(isinstance(column, list) for column in columns)
    return are_lists and len(lengths) == 1 and not any(map(is_chat, columns))


def _is_stored_completion(row: Row) -> bool:
    asked = {"messages", "input", "request", "prompt"} & row.keys()
    return row.get("object") == "chat.completion" and not asked


def _is_chatbot_ui(row: Row) -> bool:
    return {"history", "folders"} <= row.keys()


def _is_textgen(row: Row) -> bool:
    return {"internal", "visible"} <= row.keys()


def _is_silly_tavern(row: Row) -> bool:
    return {"user_name", "character_name"} <= row.keys() or {"mes", "is_user"} <= row.keys()


def _is_lm_studio(row: Row) -> bool:
    messages = row.get("messages")
    first = messages[0] if isinstance(messages, list) and messages else None
    return isinstance(first, dict) and {"versions", "currentlySelected"} <= first.keys()


def _is_slack(row: Row) -> bool:
    return {"type", "ts", "text"} <= row.keys() and row.get("type") == "message"


def _is_run_item(row: Row) -> bool:
    return {"datasetRunId", "datasetItemId"} <= row.keys()


def _is_session(row: Row) -> bool:
    return {"countTraces", "userIds"} <= row.keys()


def _is_open_assistant(row: Row) -> bool:
    return {"message_tree_id", "message_id", "text", "role"} <= row.keys() or (
        "message_tree_id" in row and "prompt" in row
    )


def _is_flowise(row: Row) -> bool:
    return {"chatflowid", "chatId"} <= row.keys() or {"chatflowId", "chatId"} <= row.keys()


def _is_posthog(row: Row) -> bool:
    event = row.get("event")
    return isinstance(event, str) and event.startswith("$ai_")


def _is_batch_request(row: Row) -> bool:
    return "custom_id" in row and bool({"body", "params"} & row.keys())


def _is_discord(row: Row) -> bool:
    return {"guild", "channel", "messageCount"} <= row.keys()


def _is_single_message(row: Row) -> bool:
    return "content" in row and isinstance(row.get("role"), str) and "messages" not in row


def _is_thread(row: Row) -> bool:
    messages = row.get("data")
    first = messages[0] if isinstance(messages, list) and messages else None
    return isinstance(first, dict) and first.get("object") == "thread.message"


def _is_by_name(row: Row) -> bool:
    rows = list(row.values())
    return bool(rows) and all(isinstance(part, dict) and "messages" in part for part in rows)


def _is_rasa(row: Row) -> bool:
    return {"sender_id", "events"} <= row.keys()


def _is_zendesk(row: Row) -> bool:
    return "satisfaction_rating" in row or isinstance(row.get("tickets"), list)


def _is_tensorzero_feedback(row: Row) -> bool:
    targets = {"target_id", "inference_id", "episode_id"}
    return {"metric_name", "value"} <= row.keys() and bool(targets & row.keys())


def _is_honeyhive(row: Row) -> bool:
    return {"event_id", "event_type", "inputs", "outputs"} <= row.keys()


_AS_CHATS = (
    'To learn from the answers all the same, write them as {"messages": [...]} lines, then: '
    "thumbwheel import openai"
)
FOREIGN: tuple[tuple[Callable[[Row], bool], str, str], ...] = (
    (_is_chatbot_ui, "Chatbot UI's export of conversations, which holds no ratings", _AS_CHATS),
    (_is_textgen, "a chat of text-generation-webui, which holds no ratings", _AS_CHATS),
    (_is_silly_tavern, "a chat of SillyTavern, which holds no ratings", _AS_CHATS),
    (_is_lm_studio, "a conversation of LM Studio, which holds no ratings", _AS_CHATS),
    (
        _is_slack,
        "messages of Slack's export, of which question, answer and reaction are three",
        "Write a line for each answer of the bot: the message before it, the answer, the reaction "
        "(+1 or -1); then: thumbwheel import csv FILE --column prompt=... --column response=... "
        "--column thumb=...",
    ),
    (
        _is_stored_completion,
        "stored completions of OpenAI, which hold answers without their questions",
        "Put beside each its messages (GET /v1/chat/completions/ID/messages) and its rating, as "
        '{"messages": [...], "response": ..., "rating": ...}; then: thumbwheel import table FILE',
    ),
    (
        _is_run_item,
        "items of a run of a Langfuse dataset, which hold ids alone",
        "Export the traces and the scores (Settings, Exports); then: thumbwheel import langfuse "
        "FILE",
    ),
    (
        _is_session,
        "Langfuse's table of sessions, which holds no questions and answers",
        "Export the traces and the scores (Settings, Exports); then: thumbwheel import langfuse "
        "FILE",
    ),
    (
        _is_bandit,
        "logged bandit feedback: actions with propensities, and no texts that a language model "
        "could learn",
        "Export the prompt and the answer that were shown beside each click, then: thumbwheel "
        "import csv FILE --column prompt=... "
        "--column response=... --column thumb=click",
    ),
    (
        _is_pandas,
        "a table written column by column",
        'In pandas: frame.to_json(FILE, orient="records", lines=True); in datasets: '
        "dataset.to_json(FILE); then: thumbwheel import table",
    ),
    (
        _is_open_assistant,
        "messages of OpenAssistant's trees",
        "Take its pairs (for example hf://OpenAssistant/oasst1 prepared as chosen and rejected), "
        "then: thumbwheel import preference",
    ),
    (
        _is_reference,
        "answers of one model to MT-Bench questions",
        "Put them into the lines of the questions, as the list `reference`, then: thumbwheel "
        "import mt_bench QUESTIONS",
    ),
    (
        _is_experiment,
        "summary figures of A/B tests, without prompts and answers",
        "Export the rows behind them: what was asked, what was answered, what the person did",
    ),
    (
        _is_intent,
        "texts with their intents",
        "Write cases, input the text and reference the intent with the checker exact_answer, "
        "then: thumbwheel import jsonl",
    ),
    (
        _is_chatgpt,
        "ChatGPT's export of conversations, which holds no ratings",
        "Its thumbs stay with OpenAI. To learn from the answers all the same, write them as "
        '{"messages": [...]} lines, then: thumbwheel import openai',
    ),
    (
        _is_chatgpt_feedback,
        "ChatGPT's message_feedback.json, which holds no questions and answers",
        "Put each rating beside the question and the answer that it is about, which are in "
        "conversations.json; then: thumbwheel import table FILE",
    ),
    (
        _is_claude,
        "Claude's export of conversations, which holds no ratings",
        'To learn from the answers all the same, write them as {"messages": [...]} lines, then: '
        "thumbwheel import openai",
    ),
    (
        _is_langsmith,
        "LangSmith's feedback without the runs that it judges",
        "Export the runs, which have it in feedback_stats (bulk export, or list_runs() as JSON "
        "lines); then: thumbwheel import call_log FILE",
    ),
    (
        _is_batch,
        "the results of a batch, which hold answers without their questions",
        "Put each beside its request, which is in the batch's input file, as "
        '{"messages": [...], "response": ...} with a rating; then: thumbwheel import table FILE',
    ),
    (
        _is_batch_request,
        "the requests of a batch, which hold questions without their answers",
        "Put beside each its result, which is in the batch's output file, as "
        '{"messages": [...], "response": ...} with a rating; then: thumbwheel import table FILE',
    ),
    (
        _is_discord,
        "a channel of Discord, of which question, answer and reaction are three",
        "Write a line for each answer of the bot: the message that it refers to, the answer, the "
        "reaction (👍 or 👎); then: thumbwheel import csv FILE --column prompt=... --column "
        "response=... --column thumb=...",
    ),
    (
        _is_by_name,
        "chats in one object, each under its name",
        "Write them as lines: jq -c '.[]' FILE > chats.jsonl; then: thumbwheel import openai "
        "chats.jsonl",
    ),
    (
        _is_thread,
        "the messages of a thread of OpenAI's Assistants, the newest first",
        'Write each thread as one line, {"messages": [...]}, the oldest first, with its rating '
        "beside it; then: thumbwheel import openai FILE",
    ),
    (
        _is_single_message,
        "single messages, of which nobody knows which belong to the same chat",
        'Write each chat as one line, {"messages": [...]}, with its rating beside it or in the '
        "message that it is about; then: thumbwheel import openai FILE",
    ),
    (
        _is_rasa,
        "conversations of Rasa, of which question, answer and rating are three events",
        "Write a line for each answer: the text of the user event, that of the bot event after it, "
        "and the value of the slot or event that rates it; then: thumbwheel import csv FILE "
        "--column prompt=... --column response=... --column thumb=...",
    ),
    (
        _is_zendesk,
        "tickets of Zendesk, whose rating is about a whole ticket and whose answers are comments",
        "Write a line for each ticket: the description, the public comment that answers it, and "
        "satisfaction_rating.score (good or bad); then: thumbwheel import csv FILE --column "
        "prompt=... --column response=... --column thumb=...",
    ),
    (
        _is_tensorzero_feedback,
        "feedback of TensorZero without the inferences that it judges",
        "Join it to ChatInference by target_id = id, so that input, output and value stand in a "
        "row; then: thumbwheel import table FILE --column thumb=value",
    ),
    (
        _is_segments,
        "rendered segments, of which nobody says what was asked and what was answered",
        'Write the chats as {"messages": [...]} lines before they are rendered; then: thumbwheel '
        "import openai FILE",
    ),
    (
        _is_promptfoo,
        "an evaluation of promptfoo",
        "Its tests are cases, not what people said. Write each as a case, input and reference, "
        "then: thumbwheel import jsonl; or `promptfoo export eval ID -o FILE.csv` and: thumbwheel "
        "import csv FILE --column prompt=... --column response=...",
    ),
    (
        _is_kiln,
        "a project file of Kiln",
        "In Kiln: Fine Tune, Download dataset, OpenAI chat format (JSONL); then: thumbwheel import "
        "openai FILE",
    ),
    (
        _is_label_studio,
        "Label Studio's full export (JSON)",
        "In Label Studio: Export, JSON-MIN (or CSV); then: thumbwheel import table FILE --column "
        "prompt=... --column response=... --column rating=...",
    ),
    (
        _is_flowise,
        "messages of Flowise, whose ratings stand in another table",
        "Join chat_message and chat_message_feedback by messageId: question, answer, rating "
        "(THUMBS_UP or THUMBS_DOWN), chatId as session; then: thumbwheel import csv FILE",
    ),
    (
        _is_posthog,
        "events of PostHog, of which an answer and its feedback are two",
        "Join them by $ai_trace_id in SQL: the input and output of $ai_generation with the rating "
        "of $ai_feedback or $ai_metric; then: thumbwheel import csv FILE --column prompt=... "
        "--column response=... --column thumb=...",
    ),
    (
        _is_honeyhive,
        "events of HoneyHive",
        "Write a line for each model event: its question, its answer, and the rating in its "
        "feedback; then: thumbwheel import table FILE",
    ),
    (
        _is_leaderboard,
        "the table of a leaderboard: how models were rated, without questions and answers",
        "In Open WebUI: Admin Panel, Evaluations, Feedbacks, Export (JSON); then: thumbwheel "
        "import openwebui FILE",
    ),
    (
        _is_librechat_message,
        "single messages of LibreChat's database",
        "In LibreChat: the menu of a conversation, Export, JSON; then: thumbwheel import librechat "
        "FILE",
    ),
    (
        _is_phoenix_annotation,
        "annotations of Phoenix without the spans that they judge",
        "Read both from the server: thumbwheel import phoenix http://HOST:6006 --agent AGENT",
    ),
    (
        _is_phoenix_evaluation,
        "evaluations of Phoenix without the spans that they judge",
        "Read both from the server: thumbwheel import phoenix http://HOST:6006 --agent AGENT",
    ),
)
"""(whether a row is of the kind, what it is, what to do)."""


def foreign(row: Row) -> tuple[str, str] | None:
    """Return (kind of row, what to do) if no source reads rows of this known kind, else None."""
    for is_kind, what, step in FOREIGN:
        if is_kind(row):
            return what, step
    return None
