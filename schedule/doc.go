// Package schedule decides which prefix order a request takes, which requests run together, and when (BAT-5 to BAT-7 in
// docs/explain/papers.md).
//
// It is pure: no goroutine, no lock, no I/O, no clock. Times are arguments: durations since an epoch that the caller
// chose. The same state and input give the same decision, so the server and the simulator use the same code. Nothing
// here is safe for concurrent use; the owner of a value serialises its calls. Nothing allocates after construction,
// except Fit.
//
// The parts, and what each decides:
//
//   - Crowded, HasRoom: is there memory to keep a user without evicting another?
//   - Ahead: which items are computed before a request needs them, and when is there no room for more?
//   - Returns: how often will a user return while its KV is still cached?
//   - Blending: is an ordinary prompt with cached items faster than the chosen order?
//   - Prototypes: is a user computed exactly and kept, or with KV of prototypes?
//   - Pace: how long will a read from disk take, and is it almost done?
//   - PrefixWait, BlockWait, SkipDisk, BatchWait: how long does a request wait for a disk or a peer?
//   - Batcher.Await: does a request wait for another engine to compute KV that it needs?
//   - PrefillModel: how many milliseconds will a batch take? Fit measures it, Tuner keeps it up to date.
//   - Decide: the user or the items first? By the paper's rule, a baseline's, or predicted time.
//   - Batcher: which waiting requests run now, which are held for a fuller batch, which are shed?
//   - Admission: is a request admitted, or refused because it would be late? Does an idle engine try a request that was
//     shed? A router that knows a Node predicts the same.
//
// Milliseconds are float64 if they are costs to compare, and time.Duration if they are points or spans on the caller's
// clock.
package schedule
