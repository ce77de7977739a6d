package main

import (
	"fmt"
	"slices"
	"strings"

	"grebe/internal/cli"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"The shell: ${enum}."`
}

func (completionCmd) Help() string {
	return `Prints a script that completes commands, flags and their choices.

Examples:

    source <(grebe completion bash)
    grebe completion zsh > "${fpath[1]}/_grebe"
    grebe completion fish > ~/.config/fish/completions/grebe.fish`
}

var completionScripts = map[string]string{
	"bash": `_grebe() {
    local IFS=$'\n'
    COMPREPLY=($(grebe complete -- "${COMP_WORDS[@]:1:COMP_CWORD}"))
    [ ${#COMPREPLY[@]} -gt 0 ] || compopt -o default
}
complete -F _grebe grebe
`,
	"zsh": `#compdef grebe
_grebe() {
    local -a found
    found=(${(f)"$(grebe complete -- "${(@)words[2,CURRENT]}")"})
    if (( ${#found} )); then compadd -- $found; else _files; fi
}
if [ "$funcstack[1]" = "_grebe" ]; then _grebe "$@"; else compdef _grebe grebe; fi
`,
	"fish": `complete -c grebe -a '(grebe complete -- (commandline -opc)[2..-1] (commandline -ct))'
`,
}

func (c *completionCmd) Run(w *cli.World) error {
	_, err := fmt.Fprint(w.Stdout, completionScripts[c.Shell])
	return err
}

// completeCmd is what the scripts call: the last word is the one to complete.
type completeCmd struct {
	Words []string `arg:"" optional:""`
}

func (c *completeCmd) Run(w *cli.World, k *kong.Kong) error {
	for _, s := range suggestions(k.Model.Node, c.Words) {
		if _, err := fmt.Fprintln(w.Stdout, s); err != nil {
			return err
		}
	}
	return nil
}

// suggestions returns what the last of words may become. None: the shell offers files.
func suggestions(at *kong.Node, words []string) []string {
	if len(words) == 0 {
		words = []string{""}
	}
	last, given := words[len(words)-1], words[:len(words)-1]
	for i := 0; i < len(given); i++ {
		word := given[i]
		if f := flagOf(at, word); f != nil && !f.IsBool() && !strings.Contains(word, "=") {
			if i++; i == len(given) {
				return beginning(choices(f), last)
			}
			continue
		}
		for _, child := range at.Children {
			if child.Name == word {
				at = child
				break
			}
		}
	}
	var out []string
	if strings.HasPrefix(last, "-") {
		for n := at; n != nil; n = n.Parent {
			for _, f := range n.Flags {
				if !f.Hidden {
					out = append(out, "--"+f.Name)
				}
			}
		}
		return beginning(out, last)
	}
	for _, child := range at.Children {
		if !child.Hidden {
			out = append(out, child.Name)
		}
	}
	for _, p := range at.Positional {
		out = append(out, p.EnumSlice()...)
	}
	return beginning(out, last)
}

// flagOf finds the flag that a word such as --name, --name=value or -n is.
func flagOf(at *kong.Node, word string) *kong.Flag {
	name, _, _ := strings.Cut(word, "=")
	for n := at; n != nil; n = n.Parent {
		for _, f := range n.Flags {
			if name == "--"+f.Name || f.Short != 0 && name == "-"+string(f.Short) {
				return f
			}
		}
	}
	return nil
}

func choices(f *kong.Flag) []string {
	if f.Enum == "" {
		return nil
	}
	return f.EnumSlice()
}

func beginning(all []string, with string) []string {
	out := slices.DeleteFunc(all, func(s string) bool { return s == "" || !strings.HasPrefix(s, with) })
	slices.Sort(out)
	return slices.Compact(out)
}
