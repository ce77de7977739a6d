package cli

import (
	"fmt"
	"maps"
	"reflect"

	"github.com/alecthomas/kong"
)

// Texts has help texts by the name of a flag or argument. ${default} and ${enum} are replaced as in a tag.
type Texts map[string]string

// flagHelper is a command, or a group of flags that commands embed, some of whose texts are too long for a tag.
type flagHelper interface{ FlagHelp() Texts }

// longHelp adds the texts of FlagHelp methods to the flags and arguments of n and of its commands.
func longHelp(n *kong.Node) error {
	texts := Texts{}
	collectTexts(n.Target.Type(), texts)
	values := n.Positional
	for _, f := range n.Flags {
		values = append(values, f.Value)
	}
	for _, v := range values {
		text, ok := texts[v.Name]
		if !ok {
			continue
		}
		if v.Help != "" {
			return fmt.Errorf("%s: %s has a help text in its tag and another in FlagHelp", n.FullPath(), v.Name)
		}
		v.Help = text
		delete(texts, v.Name)
	}
	for name := range texts {
		return fmt.Errorf("%s: FlagHelp has a text for %s, which is no flag or argument", n.FullPath(), name)
	}
	for _, child := range n.Children {
		if err := longHelp(child); err != nil {
			return err
		}
	}
	return nil
}

// collectTexts adds the texts of a structure and of those that it embeds.
func collectTexts(t reflect.Type, into Texts) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return
	}
	if h, ok := reflect.Zero(t).Interface().(flagHelper); ok {
		maps.Copy(into, h.FlagHelp())
	}
	for i := range t.NumField() {
		if t.Field(i).Anonymous {
			collectTexts(t.Field(i).Type, into)
		}
	}
}
