package main

import (
	"time"

	"grebe/bench/peer"
	"grebe/internal/cli"
)

type peerCmd struct {
	Block  int     `want:"at least 1 and at most 67108864" help:"Bytes per block; default 1048576." placeholder:"N"`
	Blocks int     `want:"at least 1 and at most 1024" help:"Blocks per request; default 64." placeholder:"N"`
	Millis float64 `want:"above 0 and at most 60000" placeholder:"MS"`
	Rounds int     `want:"at least 1 and at most 1000" placeholder:"N"`
	Check  bool    `help:"Exit with 1 if a target is missed."`
	JSON   bool    `name:"json" help:"Print JSON."`
}

func (peerCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"millis": "Milliseconds of each measurement; default 250.",
		"rounds": "Repetitions; the compared ways take turns in each. Default 15.",
	}
}

func (peerCmd) Help() string {
	return `Measures how fast blocks of KV move between two nodes. Both are in this process and talk over the loopback:
with and without TLS, and with checksums that the sender has stored or computes. Plain TCP moves the same bytes for
comparison. Without TLS, fetches must reach 0.7 times its rate.

Examples:

    grebe-bench peer --check
    grebe-bench peer --block 65536 --blocks 1024`
}

func (c *peerCmd) Run(w *cli.World) error {
	r, err := peer.Run(w.Ctx, peer.Options{
		Block: c.Block, Blocks: c.Blocks, Window: time.Duration(c.Millis * float64(time.Millisecond)), Rounds: c.Rounds,
		JSON: c.JSON,
	}, w.Stdout)
	if err == nil && c.Check && !r.Passed {
		return cli.ErrReported
	}
	return err
}
