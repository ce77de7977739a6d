"""All calls against the server at GREBE_TEST_SERVER, and the examples of the README."""

import asyncio
import os
import pathlib
import re
import unittest

import grebe

SERVER = os.environ.get("GREBE_TEST_SERVER")


@unittest.skipUnless(SERVER, "GREBE_TEST_SERVER names no server")
class Server(unittest.TestCase):
    def test_all_calls(self):
        with grebe.Client(SERVER, timeout=120) as c:
            self.assertTrue(c.ready())
            self.assertEqual([m["id"] for m in c.models()], ["demo"])
            ranked = c.rank("ana", ["i1", "i2", "i3"])
            self.assertEqual(sorted(ranked.ids()), ["i1", "i2", "i3"])
            self.assertAlmostEqual(sum(ranked.scores()), 1.0, places=5)
            self.assertEqual(ranked.usage.prompt_tokens, ranked.usage.cached_tokens + ranked.usage.computed_tokens)
            found = c.recommend("ana", n=3)
            self.assertEqual(len(found.results), 3)
            self.assertTrue(all(len(r.codes) == 3 for r in found.results))
            self.assertNotIn(found.ids()[0], c.recommend("ana", n=3, exclude=[found.ids()[0]]).ids())
            drawn = c.recommend("ana", n=3, temperature=0.7, seed=5)
            self.assertEqual(drawn.seed, 5)
            self.assertEqual(drawn.ids(), c.recommend("ana", n=3, temperature=0.7, seed=5).ids())
            raised = c.recommend("ana", n=3, boost={"category": {"books": 2}}, quota={"category": 1})
            self.assertLessEqual(sum(r.boost == 2 for r in raised.results), 1)
            self.assertTrue(all(r.boost in (0, 2) for r in raised.results))

            c.put_item("a b/ü", text="Odd name")
            self.assertEqual(c.get_item("a b/ü")["text"], "Odd name")
            c.delete_item("a b/ü")
            with self.assertRaises(grebe.GrebeError) as got:
                c.get_item("a b/ü")
            self.assertEqual((got.exception.status, got.exception.code), (404, "not_found"))
            batch = c.put_items([{"id": "n1", "text": "One"}, {"id": "n2", "text": "Two"}])
            self.assertEqual((batch.lines, batch.created, batch.failed), (2, 2, 0))

            c.put_user("py", history=["i1"])
            events = [{"id": "e1", "item": "i2", "time": 1700000000}]
            self.assertEqual(c.append_events("py", events)["appended"], 1)
            self.assertEqual(c.append_events("py", events).get("duplicates"), 1)
            self.assertIn("i2", c.get_user("py")["history"])
            c.delete_user("py")
            with self.assertRaises(grebe.GrebeError) as got:
                c.rank("ana", ["i1", "nothing"])
            self.assertEqual((got.exception.status, got.exception.field), (400, "candidates[1].id"))

    def test_asyncio_answers_the_same(self):
        with grebe.Client(SERVER, timeout=120) as client:
            want = client.rank("ana", ["i1", "i2"], prefix="user").ids()

        async def run():
            async with grebe.AsyncClient(SERVER, timeout=120) as c:
                self.assertTrue(await c.ready())
                self.assertEqual(len((await c.recommend("ana", n=2)).results), 2)
                return await asyncio.gather(*(c.rank("ana", ["i1", "i2"], prefix="user") for _ in range(8)))

        self.assertEqual([a.ids() for a in asyncio.run(run())], [want] * 8)

    def test_examples_of_the_readme(self):
        text = (pathlib.Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
        blocks = re.findall(r"```python\n(.*?)```", text, re.S)
        self.assertGreaterEqual(len(blocks), 4)
        names = {}
        for block in blocks:
            exec(compile(block.replace("http://127.0.0.1:8080", SERVER), "README.md", "exec"), names)


if __name__ == "__main__":
    unittest.main()
