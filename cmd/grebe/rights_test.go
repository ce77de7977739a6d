package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"grebe/server"
	"grebe/server/guard"
)

// Who opens the page with a key that may not see everything reads which role is missing, on every view.
func TestDashboardSaysWhichRoleIsMissing(t *testing.T) {
	key, digest := guard.NewKey()
	keys, err := guard.New([]guard.Key{{Name: "asker", SHA256: digest, Roles: []guard.Role{guard.Serve}}})
	if err != nil {
		t.Fatal(err)
	}
	f := &staged{now: *threeNodes()}
	home := servePage(t, server.Config{Fleet: f, Guard: keys})
	ctx, complaints := browser(t, home, "401", "403")
	says := func(box, want string) chromedp.Action {
		return chromedp.Poll(
			fmt.Sprintf(`document.querySelector(%q).checkVisibility() && document.querySelector(%q).textContent.includes(%q)`,
				box, box, want), nil, chromedp.WithPollingTimeout(0))
	}
	const lacks = `key "asker" lacks the role `
	var found []string
	err = chromedp.Run(ctx,
		chromedp.Navigate(home+"/"), chromedp.WaitVisible("#key-form"),
		says("#live-problem", "The charts need a key with the role admin: "),
		chromedp.SendKeys("#key", key+"\r"),
		says("#live-problem", lacks+`"admin"`), everyLook("live-denied", &found),
		chromedp.Click("#tab-playground"), says("#playground-problem",
			`need a key with the role catalog: `+lacks+`"catalog"`),
		everyLook("playground-denied", &found),
		chromedp.Click("#tab-catalog"), says("#catalog-body", `need a key with the role catalog: `+lacks+`"catalog"`),
		everyLook("catalog-denied", &found),
		chromedp.Click("#tab-fleet"), says("#fleet-problem", `need a key with the role admin: `+lacks+`"admin"`),
		everyLook("fleet-denied", &found),
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
