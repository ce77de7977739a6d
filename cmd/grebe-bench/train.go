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
	return `Examples:

    grebe-bench train allocator --out policy.bin`
}

type trainAllocatorCmd struct {
	Out      string `type:"path" default:"policy.bin" want:"a file that can be written" placeholder:"FILE"`
	Rounds   int    `want:"at least 1" help:"Rounds of serving and learning; default 100." placeholder:"N"`
	Episodes int    `want:"at least 1" help:"Workloads served per round; default 8." placeholder:"N"`
	Seed     uint64 `help:"Seed; default 1." placeholder:"N"`

	Predictors string `type:"path" want:"a file that can be written" placeholder:"FILE"`
}

func (trainAllocatorCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"out":        "Where the policy goes; default ${default}.",
		"predictors": "Instead fit the predictors that the benchmark holds against the policy, and write them here.",
	}
}

func (trainAllocatorCmd) Help() string {
	return `Trains offline, in virtual time, on workloads of the family of "grebe-bench allocator", not on those
themselves. Without options it gives the policy that the binary carries, byte for byte on the same architecture. Takes
minutes.

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
