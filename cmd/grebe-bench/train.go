package main

import (
	"fmt"
	"os"

	"grebe/bench/allocator"
	"grebe/internal/cli"
)

type trainCmd struct {
	Allocator trainAllocatorCmd `cmd:"" help:"Train the policy that divides memory between embeddings and KV."`
}

func (trainCmd) Help() string {
	return `Trains what the binaries carry.

Example:

    grebe-bench train allocator --out policy.bin`
}

type trainAllocatorCmd struct {
	Out      string `type:"path" default:"policy.bin" want:"a file that can be written" placeholder:"FILE"`
	Rounds   int    `want:"at least 1" help:"Rounds of serving and learning; default 100." placeholder:"N"`
	Episodes int    `want:"at least 1" help:"Workloads per round; default 8." placeholder:"N"`
	Seed     uint64 `help:"Seed of workloads and weights; default 1." placeholder:"N"`

	Predictors string `type:"path" want:"a file that can be written" placeholder:"FILE"`
}

func (trainAllocatorCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"out": "File for the policy; default ${default}.",
		"predictors": "Instead fit the predictors that the benchmark compares with the policy, and write them to " +
			"this file.",
	}
}

func (trainAllocatorCmd) Help() string {
	return `Trains the policy that divides memory between embeddings and KV, offline and in virtual time. Its workloads
are like those of "grebe-bench allocator", but not the same ones. With the default settings it writes the policy that
the binary carries, byte for byte on the same CPU architecture. Takes minutes.

Example:

    grebe-bench train allocator --out bench/allocator/smart/policy.bin`
}

func (c *trainAllocatorCmd) Run(w *cli.World) error {
	if c.Predictors != "" {
		p, err := allocator.TrainPredictors(w.Ctx)
		if err != nil {
			return err
		}
		return c.write(w, c.Predictors, p)
	}
	policy, err := allocator.Train(w.Ctx, allocator.TrainOptions{Rounds: c.Rounds, Episodes: c.Episodes, Seed: c.Seed},
		w.Stderr)
	if err != nil {
		return err
	}
	return c.write(w, c.Out, policy)
}

func (c *trainAllocatorCmd) write(w *cli.World, name string, data []byte) error {
	if err := os.WriteFile(name, data, 0o644); err != nil {
		return fmt.Errorf("write what was trained: %w", err)
	}
	fmt.Fprintf(w.Stdout, "%s: %d bytes\n", name, len(data))
	return nil
}
