"""What documents and values look like: shown by real servers, written into docs/documents.md."""
