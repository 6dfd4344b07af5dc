"""Events as POST requests to one receiver (https://www.standardwebhooks.com), each at least once, in the order of their keys."""
