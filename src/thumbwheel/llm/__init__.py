"""Language models behind HTTP: a client for OpenAI-compatible servers, and a scripted server to try
it against."""
