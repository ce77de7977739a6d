// Package schedule decides which prefix order a request takes, which requests run together, and when
// (SEEDS BAT-5, BAT-6, BAT-7).
//
// It is pure: no goroutine, no lock, no I/O, no clock. Times come in as arguments, durations since an
// epoch that the caller chose; the same state and input give the same decision, so the server and the
// simulator drive the same code. Nothing here is safe for concurrent use: whoever owns a value
// serialises its calls. Nothing here allocates after construction, apart from Fit.
//
// The parts, and what each decides:
//
//   - Crowded, HasRoom: is there memory to keep a user that displaces nobody?
//   - Ahead: which items are computed before a request needs them, and when is there no room for more?
//   - Returns: how often will a user find what is kept now?
//   - Blending: does an ordinary prompt with cached items pay, instead of the order that was chosen?
//   - Prototypes: is a user computed whole and kept, or with KV of prototypes?
//   - Pace: how long will a read from disk take, and is the rest of it near?
//   - PrefixWait, BlockWait, SkipDisk, BatchWait: how long is a disk or a peer waited for?
//   - PrefillModel: how many milliseconds will a batch take? Fit measures it, Tuner keeps it true.
//   - Decide: the user or the items first? By the paper's rule, a baseline's, or predicted time.
//   - Batcher: which waiting requests run now, which wait for company, which are hopeless?
//   - Admission: is a request let in, or refused because it would be late? Does an idle engine try what was shed? A router
//     that knows a Node predicts the same.
//
// Milliseconds are float64 where they are costs to compare, time.Duration where they are points or
// spans on the caller's clock.
package schedule
