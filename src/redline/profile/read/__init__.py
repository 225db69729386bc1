"""The files of a session, kind by kind: what is in them, and what is wrong with them."""
