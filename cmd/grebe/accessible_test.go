package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// accessibleScript returns what is wrong with the page that is shown, as a list of texts.
//
//go:embed testdata/accessible.js
var accessibleScript string

// axe returns the script of axe-core, or nothing where `make axe` did not fetch it.
var axe = sync.OnceValue(func() string {
	script, _ := os.ReadFile("../../bin/axe/package/axe.min.js")
	return string(script)
})

// axeFaults appends the violations that axe-core finds on the page. Without axe-core it does nothing.
func axeFaults(found *[]string) chromedp.Action {
	const ask = `axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations.map(v =>
		"axe: " + v.impact + " " + v.id + ": " + v.help + ": " + v.nodes.map(n => n.html.slice(0, 120)).join(" | ")))`
	return chromedp.ActionFunc(func(ctx context.Context) error {
		if axe() == "" {
			return nil
		}
		var there bool
		if err := chromedp.Evaluate(`"axe" in window`, &there).Do(ctx); err != nil {
			return err
		}
		if !there {
			if err := chromedp.Evaluate(axe(), nil).Do(ctx); err != nil {
				return err
			}
		}
		var wrong []string
		err := chromedp.Evaluate(ask, &wrong, func(p *runtime.EvaluateParams) *runtime.EvaluateParams {
			return p.WithAwaitPromise(true)
		}).Do(ctx)
		*found = append(*found, wrong...)
		return err
	})
}

// named are the roles of elements that a screen reader must be able to name.
var named = []string{"button", "checkbox", "combobox", "image", "link", "listbox", "meter", "region", "searchbox",
	"spinbutton",
	"tab", "tablist", "tabpanel", "textbox"}

// faults appends what is wrong with the page that the browser shows: names that the browser computes for screen
// readers, and what accessible.js finds.
func faults(found *[]string) chromedp.Action {
	return chromedp.ActionFunc(func(ctx context.Context) error {
		var wrong []string
		if err := chromedp.Evaluate(accessibleScript, &wrong).Do(ctx); err != nil {
			return err
		}
		*found = append(*found, wrong...)
		var tree struct {
			Nodes []struct {
				Ignored bool `json:"ignored"`
				Role    struct {
					Value any `json:"value"`
				} `json:"role"`
				Name struct {
					Value any `json:"value"`
				} `json:"name"`
			} `json:"nodes"`
		}
		if err := cdp.Execute(ctx, "Accessibility.getFullAXTree", nil, &tree); err != nil {
			return err
		}
		if len(tree.Nodes) == 0 {
			return errors.New("the browser has no tree of names")
		}
		for _, n := range tree.Nodes {
			role, _ := n.Role.Value.(string)
			name, _ := n.Name.Value.(string)
			if !n.Ignored && slices.Contains(named, role) && strings.TrimSpace(name) == "" {
				*found = append(*found, fmt.Sprintf("a %s has no name", role))
			}
		}
		return nil
	})
}

// everyLook checks the open view in both themes, on a desk and on a phone, and leaves the browser as it found it.
func everyLook(view string, found *[]string) chromedp.Action {
	return chromedp.ActionFunc(func(ctx context.Context) error {
		for _, width := range []int64{390, 1440} {
			for _, theme := range []string{"dark", "light"} {
				var wrong []string
				err := chromedp.Tasks{
					chromedp.EmulateViewport(width, 900), themed(theme), faults(&wrong), axeFaults(&wrong),
					shoot(fmt.Sprintf("%s-%d-%s.png", view, width, theme)),
				}.Do(ctx)
				if err != nil {
					return fmt.Errorf("%s, %d pixels, %s: %w", view, width, theme, err)
				}
				for _, w := range wrong {
					*found = append(*found, fmt.Sprintf("%s, %d pixels, %s: %s", view, width, theme, w))
				}
			}
		}
		return nil
	})
}

func themed(scheme string) chromedp.Action {
	return emulation.SetEmulatedMedia().WithFeatures(
		[]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}})
}

// The page shows what happened before it was opened. That view and the Fleet page can be used by everybody; the others
// are checked with the demo (TestDashboardForEverybody).
func TestDashboardRemembers(t *testing.T) {
	f := &staged{now: *threeNodes()}
	home := pageOf(t, f)
	askBefore(t, home)
	ctx, complaints := browser(t, home)
	patient := chromedp.WithPollingTimeout(0) // until the browser's context ends
	var found []string
	err := chromedp.Run(ctx,
		chromedp.Navigate(home+"/"),
		chromedp.Poll(
			`document.querySelector("#state").textContent === "ready" && !document.querySelector("#span-form").hidden`, nil,
			patient),
		// Nobody asks while the page is open: what the chart shows happened before.
		chromedp.Poll(`[...document.querySelectorAll("#charts figure")].some(
			f => f.textContent.startsWith("Requests per second") && f.querySelector(".key").textContent.includes("rank"))`, nil,
			patient),
		everyLook("live", &found),
		chromedp.Click("#tab-fleet"), chromedp.WaitVisible("#fleet .node"),
		chromedp.Poll(`document.querySelectorAll("#fleet-charts path.area").length > 0`, nil, patient),
		everyLook("fleet", &found),
	)
	if err != nil {
		t.Fatalf("%v; %v", err, complaints())
	}
	for _, w := range found {
		t.Error(w)
	}
	if c := complaints(); len(c) > 0 {
		t.Errorf("the browser complains:\n%s", strings.Join(c, "\n"))
	}
}

// askBefore sends a ranking between two readings of the server's history.
func askBefore(t *testing.T, home string) {
	t.Helper()
	until := func(part string) {
		for deadline := late(t); ; time.Sleep(50 * time.Millisecond) {
			resp, err := http.Get(home + "/v1/history")
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err == nil && strings.Contains(string(text), part) {
				return
			}
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("no %s in the history: %v", part, err)
			}
		}
	}
	until(`grebe_requests_total`)
	resp, err := http.Post(home+"/v1/rank", "application/json",
		strings.NewReader(`{"model": "shop", "user": {"id": "u1"}, "candidates": [{"id": "i1"}, {"id": "i3"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	until(`grebe_requests_total{code=\"200\",op=\"rank\"} 1`)
}

// plant adds HTML to the page. The page's policy allows no style attributes: the style is set by script.
func plant(html string) chromedp.Action {
	return chromedp.Evaluate(fmt.Sprintf(`{
		const box = document.createElement("div");
		box.innerHTML = %q.replaceAll("style=", "data-style=");
		for (const e of box.querySelectorAll("[data-style]")) e.style.cssText = e.dataset.style;
		document.querySelector("main").append(box);
	}`, html), nil)
}

// axe-core is there and runs: it finds mistakes that are planted on a page. Every view is checked with it in everyLook.
func TestAxeFindsMistakes(t *testing.T) {
	if axe() == "" {
		t.Skip("axe-core is not there: the dashboard is checked without it (`make axe` fetches it)")
	}
	home := pageOf(t, nil)
	ctx, _ := browser(t, home)
	for _, tt := range []struct{ name, html, want string }{
		{"nothing", ``, ""},
		{"a picture without a text", `<img src="/assets/icon.svg">`, "critical image-alt"},
		{"weak text", `<p style="color: #bbb; background: #fff">weak</p>`, "serious color-contrast"},
		{"a role that is none", `<div role="knob">x</div>`, "aria-roles"},
	} {
		var found []string
		err := chromedp.Run(ctx, chromedp.EmulateViewport(1440, 900), themed("light"), chromedp.Navigate(home+"/"),
			chromedp.Poll(`document.querySelector("#state").textContent === "ready"`, nil, chromedp.WithPollingTimeout(0)),
			plant(tt.html), axeFaults(&found))
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		text := strings.Join(found, "\n")
		if tt.want == "" && text != "" || !strings.Contains(text, tt.want) {
			t.Errorf("%s: found %q, want %q", tt.name, text, tt.want)
		}
	}
}

// The checks find mistakes that are planted on a page.
func TestAccessibilityChecksFindMistakes(t *testing.T) {
	home := pageOf(t, nil)
	ctx, _ := browser(t, home)
	for _, tt := range []struct{ name, plant, want string }{
		{"nothing", ``, ""},
		{"a button without a name", `<button></button>`, "a button has no name"},
		{"a field without a label", `<input>`, "a textbox has no name"},
		{"a picture without a text", `<img src="/assets/icon.svg">`, "a image has no name"},
		{"weak text", `<p style="color: #999; background: #fff">weak</p>`, "contrast"},
		{"a heading that skips a level", `<h4>deep</h4>`, "heading"},
		{"two titles", `<h1>second</h1>`, "h1"},
		{"an id twice", `<p id="state">x</p>`, "id state"},
		{"a reference to nothing", `<p aria-labelledby="nowhere">x</p>`, "nowhere"},
		{"a box that only a mouse scrolls", `<div style="overflow: auto; height: 20px"><p>a<br>b<br>c<br>d</p></div>`,
			"keyboard"},
		{"a small button", `<button style="min-height: 0; padding: 0; width: 9px; height: 9px; font-size: 6px">x</button>`,
			"pixels"},
		{"wider than the window", `<div style="width: 3000px">x</div>`, "wider"},
		{"a table without heads", `<table><tr><td>x</td></tr></table>`, "head"},
		{"an order of its own", `<button tabindex="3">x</button>`, "tabindex"},
	} {
		var found []string
		err := chromedp.Run(ctx, chromedp.EmulateViewport(1280, 900), themed("light"), chromedp.Navigate(home+"/"),
			chromedp.Poll(`document.querySelector("#state").textContent === "ready"`, nil, chromedp.WithPollingTimeout(0)),
			plant(tt.plant),
			faults(&found))
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		text := strings.Join(found, "\n")
		if tt.want == "" && text != "" || !strings.Contains(text, tt.want) {
			t.Errorf("%s: found %q, want %q", tt.name, text, tt.want)
		}
	}
}
