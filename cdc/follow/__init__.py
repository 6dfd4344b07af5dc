"""One store's follower: what the store holds, how far to go next, and what to do when it is down, set back or somebody else's. Nothing of Spark."""
