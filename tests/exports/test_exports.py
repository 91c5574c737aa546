"""The processes of exports.py."""

import multiprocessing
import os
import signal
import sys
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE]
import exports  # noqa: E402

PATIENCE = 60


def take_turn(answer):
    with exports.turn():
        answer.send("taken")
        signal.pause()


class Turns(unittest.TestCase):
    def test_a_killed_process_gives_its_turn_back(self):
        fork = multiprocessing.get_context("fork")
        for _ in range(2):
            answer, sender = fork.Pipe(False)
            process = fork.Process(target=take_turn, args=(sender,))
            process.start()
            is_taken = answer.poll(PATIENCE)
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            self.assertTrue(is_taken, "the turn of a process that was killed is still taken")


if __name__ == "__main__":
    unittest.main()
