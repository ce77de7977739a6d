package cache

import "math/rand/v2"

// loopTraces are generated streams that revisit their keys in an order, by name. LRU gets nothing out of the pure loops
// and is hard to beat on the sweeps; no one rule serves both.
//
//	loop             one loop over all keys, 12 passes
//	loop-short       the same, small: 6 passes over 1,500 keys
//	loop-long        many passes over few keys: 200 over 1,000
//	loop-then-sweep  a pure loop that turns into sweeps up and down, and back into a loop
//	zigzag           sweeps up and down over all keys
//	zigzag-short     the same in 9,000 requests
//	back-forth       steps forward by 300 keys and back by 200, around all keys
//	back-forth-short the same in 9,000 requests, 30 forward and 20 back
//	core             half of the requests go to a core of 2 % of the keys at random, half scan the others in a loop
//	core-scans       a core of Zipf's law, and every 3,000 requests a scan of 2,000 keys, the same ones every fourth time
//	nested           an inner loop over 200 keys, run five times for each 300 steps of an outer loop
//	flips            pieces of random length, each a loop, a reversed loop, a sweep or random requests over a part of
//	                 the keys
var loopTraces = []string{
	"loop", "loop-short", "loop-long", "loop-then-sweep", "zigzag", "zigzag-short", "back-forth", "back-forth-short",
	"core", "core-scans", "nested", "flips",
}

// pureLoops are those of loopTraces whose keys return in one fixed order.
var pureLoops = []string{"loop", "loop-short", "loop-long"}

// loops makes one of loopTraces; nil for another name.
func loops(name string) *trace {
	t := newTrace(name, false)
	one := func(key int) { t.add(uint64(key)) }
	r := rand.New(rand.NewPCG(91, 19))
	switch name {
	case "loop":
		cycle(one, 10_000, 120_000)
	case "loop-short":
		cycle(one, 1_500, 9_000)
	case "loop-long":
		cycle(one, 1_000, 200_000)
	case "loop-then-sweep":
		cycle(one, 5_000, 40_000)
		zigzag(one, 5_000, 60_000)
		cycle(one, 5_000, 40_000)
	case "zigzag":
		zigzag(one, 5_000, 52_001)
	case "zigzag-short":
		zigzag(one, 1_000, 9_000)
	case "back-forth":
		backForth(one, 6_000, 300, 200, 100_000)
	case "back-forth-short":
		backForth(one, 1_000, 30, 20, 9_000)
	case "core":
		for i := range 120_000 {
			if i%2 == 0 {
				one(r.IntN(200))
			} else {
				one(200 + i/2%9_800)
			}
		}
	case "core-scans":
		pick := zipf(r, 4_000, 0.9)
		for i := range 150_000 {
			one(pick())
			if i%3_000 == 2_999 {
				for j := range 2_000 {
					one(4_000 + i/3_000%4*2_000 + j)
				}
			}
		}
	case "nested":
		for outer := 0; len(t.keys) < 120_000; outer += 300 {
			for range 5 {
				for j := range 200 {
					one(j)
				}
			}
			for j := range 300 {
				one(200 + (outer+j)%6_000)
			}
		}
	case "flips":
		flips(one, r, 6_000, 160_000)
	default:
		return nil
	}
	return t
}

func cycle(one func(int), keys, requests int) {
	for i := range requests {
		one(i % keys)
	}
}

// zigzag goes up over all keys and down again, without repeating the last one.
func zigzag(one func(int), keys, requests int) {
	for i := range requests {
		at := i % (2*keys - 2)
		if at >= keys {
			at = 2*keys - 2 - at
		}
		one(at)
	}
}

// backForth takes so many steps forward and so many back, around all keys.
func backForth(one func(int), keys, forward, back, requests int) {
	at := 0
	for i := range requests {
		if i%(forward+back) < forward {
			at++
		} else {
			at--
		}
		one((at%keys + keys) % keys)
	}
}

// flips changes what it does, and over which keys, after pieces of random length.
func flips(one func(int), r *rand.Rand, keys, requests int) {
	for left := requests; left > 0; {
		n := min(left, 500+r.IntN(12_000))
		left -= n
		span := 50 + r.IntN(keys-50)
		first := r.IntN(keys - span + 1)
		in := func(key int) { one(first + key) }
		switch r.IntN(4) {
		case 0:
			cycle(in, span, n)
		case 1:
			cycle(func(key int) { in(span - 1 - key) }, span, n)
		case 2:
			zigzag(in, span, n)
		default:
			for range n {
				in(r.IntN(span))
			}
		}
	}
}
