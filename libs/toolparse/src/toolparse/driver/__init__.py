"""Text in, result out: one-shot and streamed, with the tools compiled."""
