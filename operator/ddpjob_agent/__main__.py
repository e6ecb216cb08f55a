"""What Python runs of the package: the agent, or torchrun in a process that the agent starts."""

import sys


def run() -> int:
    """Run what the command line asks for; the exit code."""
    mode, arguments = sys.argv[1:2], sys.argv[1:]
    if mode == ["launch"]:  # a process of its own, which needs nothing else of the agent
        from ddpjob_agent.launch import launch_torchrun

        return launch_torchrun(arguments[1:])
    from ddpjob_agent.main import main

    return main(arguments)


if __name__ == "__main__":
    sys.exit(run())
