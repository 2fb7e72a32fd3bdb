"""What everything else speaks: messages, parts, plans, random streams, registry, errors."""
