"""How a run that did not reach its end was ended, in words: the note `stopped` of its run.json."""

# In the place of a rule's name, where no rule of early stopping ended the run: word, and what follows the step.
CAUSES = {
    "interrupted": ("interrupted", ""),
    "asked_to_stop": ("stopped", " because it was asked to save and stop"),
    "launcher_killed": ("ended", " because its launcher was killed"),
    "stopped_process": ("ended", " because a process of it stood still"),
}


def ending(stopped: dict) -> tuple[str, str]:
    """(stopped, interrupted or ended; the same with step and rule or cause), of `{global_step, rule, …}`."""
    rule = stopped.get("rule")
    word, cause = CAUSES.get(rule, ("stopped", f" by the rule {rule}"))
    return word, f"{word} at step {stopped.get('global_step')}{cause}"
