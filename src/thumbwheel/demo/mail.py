"""Wordings of the demo world: how a mail with given features is put into words.

`write_mail` turns features (sender kind, topic, cue) into text. To add a wording, append it to a
pool. Each pool is cut in two by `wordings`, so that gold mails use words that no recorded mail
used. No wording may name a folder or a priority: a test holds that.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, NamedTuple

Pool = Literal["known", "fresh", "any"]
KNOWN_SHARE = 2 / 3

DOMAINS: dict[str, tuple[str, ...]] = {
    "colleague": ("oakwell", "brightforge", "tallpine", "corvane"),
    "bank": ("northbank", "silvervault", "pennyhouse", "truemint"),
    "shop": ("basketly", "cornershelf", "gadgetbarn", "lumenmart"),
    "airline": ("skylark", "bluewing", "aeronord", "swiftjet"),
    "school": ("hillschool", "elmcollege", "brookclass", "pupilgate"),
    "club": ("rivertennis", "chessloft", "peakhikers", "rowhouse"),
    "media": ("dailyquill", "inkwave", "pressroom", "columnist"),
    "city": ("townhall", "civicdesk", "permitdesk", "boroughnet"),
    "friend": ("homemail", "postnest", "lettero", "chatbox"),
}

FIRST = (
    "ada",
    "ben",
    "cleo",
    "dario",
    "edith",
    "finn",
    "greta",
    "hugo",
    "ines",
    "jonas",
    "kira",
    "leon",
    "mara",
    "nils",
    "olga",
    "paul",
    "rosa",
    "sven",
    "tessa",
    "uwe",
    "vera",
    "wim",
    "yara",
    "zeno",
)
LAST = (
    "adler",
    "brook",
    "crane",
    "dorn",
    "ebert",
    "frost",
    "grant",
    "holm",
    "iver",
    "jung",
    "keller",
    "lind",
    "moss",
    "noor",
    "otto",
    "pike",
    "reed",
    "stone",
    "thorn",
    "vale",
    "west",
    "young",
)

SLOTS: dict[str, tuple[str, ...]] = {
    "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "month": ("January", "March", "April", "June", "August", "October", "December"),
    "place": (
        "Lisbon",
        "Oslo",
        "Vienna",
        "Porto",
        "Ghent",
        "Turin",
        "Riga",
        "Malmo",
        "Basel",
        "Split",
    ),
    "room": (
        "the blue room",
        "room four",
        "the library",
        "the main hall",
        "the corner office",
        "the annex",
    ),
    "thing": (
        "a lamp",
        "two chairs",
        "a kettle",
        "a backpack",
        "a keyboard",
        "a tent",
        "a blender",
        "a rug",
        "a clock",
    ),
    "theme": (
        "solar power",
        "old maps",
        "garden design",
        "new bridges",
        "bird songs",
        "city bikes",
        "bread baking",
    ),
    "group": (
        "the design team",
        "the planning group",
        "the field crew",
        "the second floor",
        "the board",
        "the tutors",
    ),
}

SUBJECTS: dict[str, tuple[str, ...]] = {
    "bill": (
        "Invoice {number}",
        "Amount due for {month}",
        "Statement for {month}",
        "Payment of {amount} euros",
        "Your fee for {month}",
        "Balance of {amount} euros",
        "Charge {number}",
        "What is owed for {month}",
        "Receipt {number}",
    ),
    "meeting": (
        "Meeting on {day}",
        "Can we meet on {day}?",
        "Sitting down in {room}",
        "Agenda for {day}",
        "Invitation for {day}",
        "Gathering in {room}",
        "A talk on {day} at {hour}",
        "Appointment on {day}",
        "See you in {room}?",
    ),
    "trip": (
        "Your flight to {place}",
        "Hotel in {place}",
        "Itinerary for {place}",
        "Train to {place}",
        "Boarding for {place}",
        "Stay in {place}",
        "Seat {hour} to {place}",
        "Tickets to {place}",
        "Route to {place}",
    ),
    "parcel": (
        "Parcel {number}",
        "Shipped: {thing}",
        "Delivery on {day}",
        "Package with {thing}",
        "Tracking {number}",
        "On its way: {thing}",
        "Dispatched: {thing}",
        "Courier on {day}",
        "Box {number} left the depot",
    ),
    "offer": (
        "{amount} percent off",
        "Sale until {day}",
        "A deal on {thing}",
        "Save on {thing}",
        "Discount for {month}",
        "Coupon {number}",
        "Half price: {thing}",
        "Bargains on {day}",
        "Voucher for {thing}",
    ),
    "digest": (
        "This week: {theme}",
        "Stories on {theme}",
        "Issue {number}: {theme}",
        "Essay on {theme}",
        "Our column on {theme}",
        "Ten articles for {day}",
        "Letter {number}: {theme}",
        "Features on {theme}",
        "Long piece on {theme}",
    ),
    "draft": (
        "Draft {number}",
        "Slides for {group}",
        "Review the report",
        "Document for {group}",
        "Comments on section {number}",
        "Spreadsheet {number}",
        "Proposal for {group}",
        "Notes from {group}",
        "Chapter {number} to edit",
    ),
    "alert": (
        "New login from {place}",
        "Your password",
        "Sign-in code {number}",
        "Unknown device in {place}",
        "Profile locked",
        "Reset link {number}",
        "Access from {place}",
        "Your PIN was changed",
        "Verify your identity",
    ),
}

VAGUE_SUBJECTS = (
    "A short note",
    "Hello again",
    "Regarding last week",
    "Message {number}",
    "For you",
    "An update",
    "Quick word",
    "Something new",
    "About {month}",
)

BODIES: dict[str, tuple[str, ...]] = {
    "bill": (
        "The invoice over {amount} euros is attached.",
        "We ask you to pay {amount} euros for {month}.",
        "Your statement shows a balance of {amount} euros.",
        "The fee of {amount} euros is now due.",
        "We charged {amount} euros to your card in {month}.",
        "The sum for {month} comes to {amount} euros.",
        "Your payment of {amount} euros has not arrived.",
        "You owe {amount} euros for {month}.",
        "The receipt over {amount} euros is enclosed.",
    ),
    "meeting": (
        "Let us meet in {room} on {day} at {hour}.",
        "You are invited to {room} on {day}.",
        "The agenda for our talk on {day} is enclosed.",
        "Could we sit together on {day} at {hour}?",
        "{group} will gather in {room} on {day}.",
        "Your appointment on {day} at {hour} is confirmed.",
        "The meeting with {group} moves to {day}.",
        "Please come to {room} at {hour} on {day}.",
        "We will get together with {group} at {hour}.",
    ),
    "trip": (
        "Your flight to {place} leaves at {hour}.",
        "The hotel in {place} is booked for two nights.",
        "Boarding for {place} starts at gate {hour}.",
        "Your train to {place} departs on {day}.",
        "The itinerary for {place} has changed.",
        "Your stay in {place} begins on {day}.",
        "Seat {hour} on the way to {place} is yours.",
        "The tickets to {place} are enclosed.",
        "A car waits for you at the airport of {place}.",
    ),
    "parcel": (
        "Your parcel with {thing} has been shipped.",
        "The courier brings {thing} on {day}.",
        "We dispatched {thing} from our depot.",
        "The package {number} is at the pickup point.",
        "Delivery of {thing} is planned for {day}.",
        "You can follow {thing} with tracking {number}.",
        "The box with {thing} left the depot on {day}.",
        "{thing} is on its way to your door.",
        "The driver could not drop off {thing}.",
    ),
    "offer": (
        "Get {amount} percent off {thing} this week.",
        "Our sale on {thing} ends on {day}.",
        "Use coupon {number} to save on {thing}.",
        "This deal on {thing} is only for members.",
        "Everything in the store is half price on {day}.",
        "A discount of {amount} percent is waiting for you.",
        "Buy {thing} now and get another one free.",
        "Bargains like {thing} do not last.",
        "Your voucher gives you {amount} percent off.",
    ),
    "digest": (
        "This issue looks at {theme} and {theme}.",
        "Our editors picked ten stories on {theme}.",
        "The weekly column is about {theme}.",
        "An essay on {theme} opens the new issue.",
        "Three articles explain {theme} in depth.",
        "In this letter you find a long piece on {theme}.",
        "We interviewed a writer about {theme}.",
        "The features this week turn to {theme}.",
        "Our authors tell the history of {theme}.",
    ),
    "draft": (
        "The draft for {group} needs your comments.",
        "Please review section {number} of the report.",
        "I added slides for {group} to the document.",
        "The spreadsheet {number} has new figures.",
        "Can you edit the proposal for {group}?",
        "Version {number} of the document is shared with you.",
        "My notes from {group} are in the shared file.",
        "Chapter {number} still lacks a summary.",
        "{group} asked for changes to the report.",
    ),
    "alert": (
        "Someone signed in to your profile from {place}.",
        "Your password was changed on {day}.",
        "The sign-in code is {number}.",
        "We saw a login from an unknown device in {place}.",
        "Your profile has been locked after five attempts.",
        "Use the link {number} to reset your password.",
        "Access from {place} was blocked.",
        "A new PIN has been set for your profile.",
        "Please verify your identity with code {number}.",
    ),
}

CUES: dict[str, tuple[str, ...]] = {
    "urgent": (
        "This is urgent.",
        "The deadline is tonight.",
        "We need it immediately.",
        "It is urgent, please answer.",
        "The deadline is close.",
        "Please answer immediately.",
        "An urgent matter for you.",
        "The deadline ends soon.",
        "Please act immediately.",
    ),
    "relaxed": (
        "There is no rush.",
        "Answer whenever you like.",
        "Only for your information.",
        "Take your time, no rush.",
        "Whenever you find a moment.",
        "For information, nothing to do.",
        "Really no rush.",
        "Read it whenever you want.",
        "Just for information.",
    ),
    "plain": (),
}

GREETINGS = (
    "Hello,",
    "Good morning,",
    "Dear reader,",
    "Hi there,",
    "Good day,",
    "Greetings,",
    "Hi,",
    "Dear you,",
    "Good evening,",
)

FILLERS = (
    "I hope you are well.",
    "It was a mild {day} here.",
    "Thank you for being with us.",
    "We wrote to you in {month}.",
    "As said on the phone, here it is.",
    "You will find more below.",
    "The weather in {month} was fine.",
    "Many thanks for your patience.",
    "As always, we are happy to help.",
)


class Mail(NamedTuple):
    """One message: the features that decide its filing, and its text (`prompt` is what the model
    reads)."""

    sender: str
    topic: str
    cue: str
    address: str
    prompt: str


def wordings(phrases: Sequence[str], pool: Pool) -> Sequence[str]:
    """Return the phrases of one pool: the first two thirds are `known`, the rest `fresh`, `any` is
    all of them."""
    cut = round(len(phrases) * KNOWN_SHARE)
    return {"known": phrases[:cut], "fresh": phrases[cut:], "any": phrases}[pool]


def fill(rng: random.Random, phrase: str) -> str:
    """Put random values into the slots of a phrase; the first letter becomes a capital."""
    while "{" in phrase:
        start, end = phrase.index("{"), phrase.index("}")
        slot = phrase[start + 1 : end]
        if slot in SLOTS:
            value = rng.choice(SLOTS[slot])
        else:
            # all three are drawn each time, so that a mail's later words do not depend on the slot
            numbers = {
                "number": rng.randint(20, 99),
                "amount": rng.randint(10, 99),
                "hour": rng.randint(7, 20),
            }
            value = str(numbers[slot])
        phrase = phrase[:start] + value + phrase[end + 1 :]
    return phrase[0].upper() + phrase[1:]


def write_mail(rng: random.Random, sender: str, topic: str, cue: str, pool: Pool) -> Mail:
    """Write a mail with these features. Three of ten subjects say nothing about the topic."""
    address = f"{rng.choice(FIRST)}.{rng.choice(LAST)}@{rng.choice(DOMAINS[sender])}.example"
    subjects = VAGUE_SUBJECTS if rng.random() < 0.3 else SUBJECTS[topic]
    sentences = [rng.choice(wordings(BODIES[topic], pool))]
    if CUES[cue]:
        sentences.append(rng.choice(wordings(CUES[cue], pool)))
    if rng.random() < 0.7:
        sentences.append(rng.choice(wordings(FILLERS, pool)))
    rng.shuffle(sentences)
    subject = fill(rng, rng.choice(wordings(subjects, pool)))
    greeting = rng.choice(wordings(GREETINGS, pool))
    body = " ".join(fill(rng, sentence) for sentence in (greeting, *sentences))
    return Mail(sender, topic, cue, address, f"From: {address}\nSubject: {subject}\n\n{body}")
