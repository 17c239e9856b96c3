"""Translation between an API that clients speak and OpenAI's chat completions, which every server
of a target of ours speaks.

A request becomes a chat request, and the chat reply to it is written in the client's API, whole or
as a stream. One file each for the APIs; `chat_reply.py` reads what the server sends, and
`translation.py` has the contract. Which calls are translated is decided in `translated_call.py`.
"""
