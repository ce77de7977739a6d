package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// Every view can be used by everybody: on a desk and on a phone, in light and dark. The playground asks with own words,
// filters and exclusions, and writes what it asked as commands; the catalog is searched.
func TestDashboardForEverybody(t *testing.T) {
	var out bytes.Buffer
	r := startDemo(t, &out)
	ctx, complaints := browser(t, r.http)
	patient := chromedp.WithPollingTimeout(0) // until the browser's context ends
	run := func(name string, actions ...chromedp.Action) {
		t.Helper()
		if err := chromedp.Run(ctx, actions...); err != nil {
			t.Fatalf("%s: %v; %v", name, err, complaints())
		}
	}
	value := func(selector, text string) chromedp.Action {
		return chromedp.Evaluate(fmt.Sprintf(`document.querySelector(%q).value = %q`, selector, text), nil)
	}
	var text, command, python, found string
	run("first view", chromedp.Navigate(r.http+"/"), chromedp.Poll(
		`document.querySelectorAll("figure path.area").length > 0`, nil, patient),
		chromedp.Text("#charts", &text))
	for _, want := range []string{`−\d+ (s|min)`, `now`, `No requests lately`} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("no %s in the charts: %s", want, text)
		}
	}
	if strings.Contains(text, "peer") {
		t.Errorf("a server without a cluster shows tokens of peers: %s", text)
	}
	run("playground", chromedp.Click("#tab-playground"), chromedp.WaitVisible("[data-side=A] form button"),
		chromedp.Poll(`document.querySelector("#history summary").textContent.startsWith("History:")`, nil, patient),
		chromedp.Click("#own summary"), value("#user-text", "Likes camping by the sea, isn't rich."),
		value("#own-candidates", "i00040\n\"A tent for two\"\ni02500"),
		value("[data-side=A] [name=model]", "shop-pointwise"), value("[data-side=A] [name=prefix]", "user"),
		chromedp.Click("[data-side=A] form button"), chromedp.WaitVisible("[data-side=A] .answer tbody tr"),
		chromedp.Text("[data-side=A] .answer tbody", &text),
		chromedp.TextContent("[data-side=A] [data-as=curl]", &command),
		chromedp.TextContent("[data-side=A] [data-as=Python]", &python))
	if !strings.Contains(text, "A tent for two") || strings.Count(text, "\n") < 2 {
		t.Errorf("the ranking of own candidates is %q", text)
	}
	if want := `curl -sS ` + r.http +
		`/v1/rank -d '{"user":{"text":"Likes camping by the sea, isn'\''t rich."}`; !strings.HasPrefix(command, want) {
		t.Errorf("the command is %q, want %q first", command, want)
	}
	if want :=
		`client.rank({"text": "Likes camping by the sea, isn't rich."}, ["i00040", {"text": "A tent for two"}, ` +
			`"i02500"], `; !strings.Contains(python, want) {
		t.Errorf("in Python it is %q, want %q", python, want)
	}
	var departments, excluded int
	run("recommendation", value("#user-text", ""), value(`[data-side=B] [name=op]`, "recommend"),
		chromedp.Evaluate(`document.querySelector("[data-side=B] [name=op]").dispatchEvent(new Event("change"))`, nil),
		value("[data-side=B] [name=n]", "3"), value("[data-side=B] [name=filter]", "department=Camping"),
		value("[data-side=B] [name=exclude]", "i00040, i02500"),
		chromedp.Click("[data-side=B] form button"), chromedp.WaitVisible("[data-side=B] .answer tbody tr"),
		chromedp.TextContent("[data-side=B] [data-as=curl]", &command),
		chromedp.Evaluate(`document.querySelectorAll("[data-side=B] .answer tbody tr").length`, &departments),
		chromedp.Evaluate(
			`document.querySelectorAll("[data-side=B] .answer [title=i00040], [data-side=B] .answer [title=i02500]").length`,
			&excluded))
	for _, want := range []string{`"n":3`, `"filter":{"department":["Camping"]}`, `"exclude":["i00040","i02500"]`} {
		if !strings.Contains(command, want) {
			t.Errorf("no %s in %s", want, command)
		}
	}
	if departments != 3 || excluded != 0 {
		t.Errorf("%d items are recommended, %d of them excluded ones; want 3 and none", departments, excluded)
	}
	run("catalog", chromedp.Click("#tab-catalog"), chromedp.WaitVisible("#catalog-body table"), value("#find-text", "kay"),
		chromedp.Click("#find button"), chromedp.Poll(`document.querySelector("#found")?.textContent.includes("Users")`, nil,
			patient),
		chromedp.TextContent("#found", &found))
	if !strings.Contains(found, "kaya") || !strings.Contains(found, "No item has all these words.") {
		t.Errorf("a search for kay finds %q", found)
	}
	var faulty []string
	for _, view := range []string{"live", "playground", "catalog"} {
		run(view, chromedp.Click("#tab-"+view), chromedp.WaitVisible("#"+view), everyLook("everybody-"+view, &faulty))
	}
	for _, fault := range faulty {
		t.Error(fault)
	}
	if c := complaints(); len(c) > 0 {
		t.Errorf("the browser complains:\n%s", strings.Join(c, "\n"))
	}
}
