"""What a site agrees to, whatever a server asks for: its rules, the runs its owner approved, and what left it."""
