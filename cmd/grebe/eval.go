package main

import "grebe/eval/measure"

// evalCmd measures how good recommendations are.
type evalCmd struct {
	Run   measure.Models `cmd:"" default:"withargs" help:"Measure rankings and recommendations (the default)."`
	World measure.Shop   `cmd:"" help:"Write the shop that models are measured on: items, users, requests."`
}

// Help has the examples that kong prints.
func (evalCmd) Help() string {
	return `Examples:

    grebe eval --users 100                 (grebe eval run --help lists the flags)
    grebe eval -c grebe.yaml --html eval.html
    grebe eval world --out ./shop`
}
