package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"grebe/internal/cli"

	"github.com/alecthomas/kong"
)

// version is set by the linker; a plain go build leaves it to the build's own information.
var version = ""

type versionCmd struct{}

func (versionCmd) Help() string { return "Example:\n\n    grebe version" }

// versionFlag prints the version wherever it stands.
type versionFlag bool

// BeforeReset runs before the rest of the command line is checked.
func (versionFlag) BeforeReset(k *kong.Kong, w *cli.World) error {
	err := versionCmd{}.Run(w)
	k.Exit(cli.Done)
	return err
}

func (versionCmd) Run(w *cli.World) error {
	_, err := fmt.Fprintf(w.Stdout, "grebe %s (%s, %s/%s)\n", versionText(), runtime.Version(), runtime.GOOS,
		runtime.GOARCH)
	return err
}

func versionText() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "-dirty"
		}
	}
	if revision == "" {
		return info.Main.Version
	}
	return revision + modified
}
