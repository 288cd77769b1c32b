"""One module a noun. Each has ``routes(…) -> list[Route]``, given what knows the answers.

The app hands all of them to the listener. A new noun is a new module and a line in the app.
"""
