package main

import (
	"time"

	"grebe/bench/peer"
	"grebe/internal/cli"
)

type peerCmd struct {
	Block  int     `want:"at least 1 and at most 67108864" help:"Bytes of a block; default 1048576." placeholder:"N"`
	Blocks int     `want:"at least 1 and at most 1024" help:"Blocks of a GET; default 64." placeholder:"N"`
	Millis float64 `want:"above 0 and at most 60000" help:"Milliseconds of a window; default 250." placeholder:"MS"`
	Rounds int     `want:"at least 1 and at most 1000" help:"Windows of each kind, in turn; default 15." placeholder:"N"`
	Check  bool    `help:"Fail when a bar is not reached."`
	JSON   bool    `name:"json" help:"Print JSON."`
}

func (peerCmd) Help() string {
	return `Moves blocks of KV between two nodes in this process, over the loopback: with and without TLS, and with
checksums that the sender knows or computes. Plain TCP moves the same bytes beside it. Fetches without TLS have to reach
0.7 times its rate.

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
