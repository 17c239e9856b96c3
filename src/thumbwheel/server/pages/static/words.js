// An error's text without the part that proposes a command or its options: on a page the same is done
// by fields and buttons. The server does the same with what it writes into a page (core/present.py).

const COMMAND = "(?:thumbwheel |--[a-z])";
const IN_BRACKETS = new RegExp(`\\s*\\([^()]*\\b${COMMAND}[^()]*\\)`, "g");
const ADVICE = [
  new RegExp(`(?:^|[;.,]\\s+)(?:say|another one|if|then|See|Give|Run)\\b[^:;]*:\\s+${COMMAND}.*`, "s"),
  new RegExp(`:\\s+${COMMAND}.*`, "s"),
  new RegExp(`(?:^|[;.,]\\s+)[^;.,]*\\b${COMMAND}.*`, "s"),
];

export function withoutCommands(text) {
  const shown = text.replace(IN_BRACKETS, "");
  const pattern = ADVICE.find((each) => each.test(shown));
  return pattern ? shown.replace(pattern, "") : shown;
}
