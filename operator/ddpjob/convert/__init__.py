"""Turns jobs of other operators into DDPJobs, and says what is different in them.

It is pure: an object goes in, a DDPJob and notes come out. `pytorchjob` and `trainjob` have a table
each of what becomes of the fields of their kind, which `fields` reads so that nothing is lost in
silence. `command` finds the launcher. `pod` reads a pod template. `spec` makes a spec of it, and
checks what comes out. All raise InvalidJob for what can be no DDPJob.
"""
