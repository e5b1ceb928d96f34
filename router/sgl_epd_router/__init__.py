"""The HTTP router: OpenAI API in front of encode, prefill and decode pools."""
