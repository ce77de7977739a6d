package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

type sharedFlags struct {
	Key string `placeholder:"KEY"`
}

func (sharedFlags) FlagHelp() Texts { return Texts{"key": "The text of a shared flag."} }

type helpedCmd struct {
	File string `arg:""`
	Size int    `default:"7"`
	sharedFlags
}

func (helpedCmd) FlagHelp() Texts {
	return Texts{"file": "The text of an argument.", "size": "A size; default ${default}."}
}

func (helpedCmd) Run() error { return nil }

func TestTextsOutsideOfTags(t *testing.T) {
	var out bytes.Buffer
	commands := &struct {
		Helped helpedCmd `cmd:""`
		Other  helpedCmd `cmd:""`
	}{}
	if code := Run("try", "", commands, []string{"helped", "--help"}, &World{Stdout: &out, Stderr: &out}); code != Done {
		t.Fatalf("exit code %d: %s", code, &out)
	}
	for _, want := range []string{"The text of an argument.", "A size; default 7.", "The text of a shared flag."} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the help lacks %q:\n%s", want, &out)
		}
	}
}

type misnamedCmd struct {
	Size int
}

func (misnamedCmd) FlagHelp() Texts { return Texts{"sise": "A size."} }

type twiceCmd struct {
	Size int `help:"A size."`
}

func (twiceCmd) FlagHelp() Texts { return Texts{"size": "A size."} }

func TestTextsThatHaveNoPlace(t *testing.T) {
	for want, commands := range map[string]any{
		"sise, which is no flag": &struct {
			Command misnamedCmd `cmd:""`
		}{},
		"size has a help text in its tag": &struct {
			Command twiceCmd `cmd:""`
		}{},
	} {
		_, err := kong.New(commands, kong.PostBuild(func(k *kong.Kong) error { return longHelp(k.Model.Node) }))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}
