package app

import (
	"fmt"
	"log/slog"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/embed"
	"grebe/internal/config"
)

// TestRecommendFromATable: with its items' rows in a table, a model recommends what it does with those of the
// checkpoint, with the same scores, and follows rows that are written to the table.
func TestRecommendFromATable(t *testing.T) {
	path := "../testdata/fixtures/hstu/absolute"
	load := func(more ...config.Setting) *App {
		t.Helper()
		cfg := tableOfEvents(t, path, "4MiB", append([]config.Setting{{Path: "device", Value: "cpu"},
			{Path: "models[0].path", Value: path}}, more...)...)
		a, err := Load(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		})
		return a
	}
	own, table := load(config.Setting{Path: "models[0].item_table", Value: ""}), load()
	recommended := func(a *App) string {
		t.Helper()
		req := &grebev1.RecommendRequest{N: 20, User: &grebev1.User{Id: "u"}}
		for i := range 30 {
			req.User.Events = append(req.User.Events, &grebev1.Event{Item: fmt.Sprint("i", i*7%50), Action: int32(i % 8)})
		}
		out, err := a.service.Recommend(t.Context(), req)
		if err != nil || len(out.Notes) > 0 {
			t.Fatal(err, out.GetNotes())
		}
		text := ""
		for _, x := range out.Results {
			text += fmt.Sprintf("%s %x ", x.Id, x.Score)
		}
		return text
	}
	if got, want := recommended(table), recommended(own); got != want {
		t.Errorf("items of a table are recommended as %q, those of the checkpoint as %q", got, want)
	}
	rows := table.tables.Table("items")
	row := make([]float32, rows.Dim())
	before := recommended(table)
	if err := rows.Put(t.Context(), []uint64{3}, embed.Bytes(row)); err != nil {
		t.Fatal(err)
	}
	if after := recommended(table); after == before {
		t.Errorf("a row has changed, and what is recommended has not: %q", after)
	}
}
