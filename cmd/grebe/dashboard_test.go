package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// browser opens a page of its own in a headless Chromium and returns what it complains about: errors on
// its console, and requests to anyone but the server. The first error ends ctx: nobody waits for a page that does not
// work.
//
// Errors with one of the texts in expected are none.
func browser(t *testing.T, home string, expected ...string) (ctx context.Context, complaints func() []string) {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: the dashboard is tested in a real browser (`make browser` installs it)")
	}
	// Not t.TempDir: Chromium's helpers may write there for a moment after it has ended.
	profile, err := os.MkdirTemp("", "grebe-chromium-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(profile) })
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true), chromedp.UserDataDir(profile),
		chromedp.WSURLReadTimeout(time.Until(late(t))))
	alloc, cancel := chromedp.NewExecAllocator(context.Background(), opts...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(alloc)
	t.Cleanup(cancel)
	ctx, cancel = context.WithDeadline(ctx, late(t))
	t.Cleanup(cancel)
	var mu sync.Mutex
	var found []string
	fail := func(text string) {
		if slices.ContainsFunc(expected, func(e string) bool { return strings.Contains(text, e) }) {
			return
		}
		found = append(found, text)
		cancel()
	}
	chromedp.ListenTarget(ctx, func(ev any) {
		mu.Lock()
		defer mu.Unlock()
		switch e := ev.(type) {
		case *runtime.EventExceptionThrown:
			fail(e.ExceptionDetails.Error())
		case *runtime.EventConsoleAPICalled:
			if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning {
				fail(fmt.Sprint(e.Type, e.Args))
			}
		case *log.EventEntryAdded:
			if e.Entry.Level == log.LevelError {
				fail(e.Entry.Text + " " + e.Entry.URL)
			}
		case *network.EventRequestWillBeSent:
			if u := e.Request.URL; !strings.HasPrefix(u, home) && !strings.HasPrefix(u, "data:") {
				found = append(found, "asks "+u)
			}
		}
	})
	if err := chromedp.Run(ctx, log.Enable(), network.Enable(), runtime.Enable()); err != nil {
		t.Fatalf("start chromium: %v", err)
	}
	return ctx, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return found
	}
}

// planted serves the dashboard with a mistake at the beginning of a function of one of its scripts.
func planted(t *testing.T, script, function string) (address string) {
	t.Helper()
	behind, err := url.Parse(pageOf(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(behind)
	proxy.ModifyResponse = func(r *http.Response) error {
		if !strings.HasSuffix(r.Request.URL.Path, script) {
			return nil
		}
		data, err := io.ReadAll(r.Body)
		before, after, ok := bytes.Cut(data, []byte(function))
		if err != nil || !ok {
			t.Errorf("no %q in %s: %v", function, script, err)
		}
		data = fmt.Appendf(nil, `%s%s throw new TypeError("planted"); %s`, before, function, after)
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
		r.Header.Set("Content-Length", strconv.Itoa(len(data)))
		r.Header.Del("Etag")
		return nil
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Accept-Encoding")
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// Who waits for something on a page whose script fails gets the script's error at once: also for one that the page
// would pass over if the server had explained it.
func TestBrokenPage(t *testing.T) {
	for _, tt := range []struct{ name, script, function, want string }{
		{"does not parse", "app.js", "function show(", "SyntaxError"},
		{"reads nothing", "live.js", "async function read() {", "planted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			home := planted(t, tt.script, tt.function)
			ctx, complaints := browser(t, home)
			err := chromedp.Run(ctx, chromedp.Navigate(home), chromedp.Poll(`false`, nil, chromedp.WithPollingTimeout(0)))
			if c := complaints(); !errors.Is(err, context.Canceled) || len(c) == 0 || !strings.Contains(c[0], tt.want) {
				t.Errorf("ends with %v and complains %q, want %q", err, c, tt.want)
			}
		})
	}
}

// load asks the demo until stop is called.
func loadDemo(t *testing.T, url string) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			path,
				body := "/v1/rank",
				fmt.Sprintf(
					`{"model": "shop", "user": {"id": "kaya"}, "candidates": [{"id": "i%05d"}, {"id": "i%05d"}], `+
						`"deadline_ms": 20000}`, 40+i%200, 2500)
			if i%5 == 0 {
				path, body = "/v1/recommend",
					`{"model": "shop", "user": {"id": "rosa"}, "n": 3, "beam_width": 8, "deadline_ms": 20000}`
			}
			resp, err := http.Post(url+path, "application/json", strings.NewReader(body))
			if err != nil {
				t.Errorf("load: %v", err)
				return
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusTooManyRequests {
				t.Errorf("load: %s answers %s", path, resp.Status)
				return
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

// shoot keeps what the browser shows, where GREBE_SCREENSHOTS names a folder.
func shoot(name string) chromedp.Action {
	return chromedp.ActionFunc(func(ctx context.Context) error {
		dir := os.Getenv("GREBE_SCREENSHOTS")
		if dir == "" {
			return nil
		}
		var png []byte
		if err := chromedp.FullScreenshot(&png, 100).Do(ctx); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, name), png, 0o644)
	})
}

// picture takes one of the pictures of the documents again, where GREBE_IMAGES names their folder (`make images`).
func picture(name string, height int64) chromedp.Action {
	return chromedp.ActionFunc(func(ctx context.Context) error {
		dir := os.Getenv("GREBE_IMAGES")
		if dir == "" {
			return nil
		}
		var png []byte
		err := chromedp.Tasks{
			themed("light"), chromedp.EmulateViewport(1080, height, chromedp.EmulateScale(1.5)),
			chromedp.Evaluate(`scrollTo(0, 0); document.activeElement.blur()`, nil), chromedp.CaptureScreenshot(&png),
		}.Do(ctx)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, name), png, 0o644)
	})
}

// tellStory plays the story on the first screen: a ranking, the same again with most of it reused, and another answer
// after the user bought something.
func tellStory(ctx context.Context, t *testing.T, model string) {
	t.Helper()
	pictureOf := func(model string) chromedp.Action {
		if model == "shop" {
			return picture("dashboard-story.png", 705)
		}
		return chromedp.Tasks{}
	}
	next := func(step string) chromedp.Action { // until a step can be clicked
		return chromedp.Poll(fmt.Sprintf(`!document.querySelector("#story-%s").disabled`, step), nil,
			chromedp.WithPollingTimeout(0))
	}
	var says [3]string
	var scores [3]string
	read := func(i int) chromedp.Action {
		return chromedp.Tasks{
			chromedp.Text("#story-says", &says[i]),
			chromedp.Evaluate(`[...document.querySelectorAll("#story-says tbody td.number")].map(e => e.textContent).join()`,
				&scores[i]),
		}
	}
	var found []string
	err := chromedp.Run(ctx,
		chromedp.WaitVisible("#story"), next("rank"), chromedp.SetValue("#story-model", model),
		chromedp.Click("#story-rank"), next("again"), read(0),
		chromedp.Click("#story-again"), next("change"), read(1),
		chromedp.Click("#story-change"),
		chromedp.Poll(`document.querySelector("#story-says").textContent.includes("bought the last offer")`, nil,
			chromedp.WithPollingTimeout(0)),
		next("over"), read(2), pictureOf(model), everyLook("story-"+model, &found), chromedp.EmulateViewport(1280, 900),
		chromedp.Click("#story-over"), next("rank"),
	)
	if err != nil {
		t.Fatalf("story with %s: %v; it says %q", model, err, says)
	}
	for _, w := range found {
		t.Error(w)
	}
	if scores[0] == "" || scores[0] != scores[1] || scores[1] == scores[2] {
		t.Errorf("%s: scores %q, asked again %q, of a changed user %q", model, scores[0], scores[1], scores[2])
	}
	reused := regexp.MustCompile(`(\d[\d,]*) of (\d[\d,]*) tokens were reused`).FindStringSubmatch(says[1])
	if reused == nil {
		t.Fatalf("%s: %q does not say what was reused", model, says[1])
	}
	part, whole := number(t, reused[1]), number(t, reused[2])
	if 2*part < whole {
		t.Errorf("%s: %d of %d tokens were reused, want most of them", model, part, whole)
	}
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.ReplaceAll(text, ",", ""))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A chart with one reading shows a dot and says the value, also while later readings have none.
func TestChartOfOneReading(t *testing.T) {
	var out bytes.Buffer
	r := startDemo(t, &out)
	ctx, complaints := browser(t, r.http)
	var width float64
	var key string
	waits := func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }
	err := chromedp.Run(ctx, chromedp.Navigate(r.http+"/"),
		chromedp.Evaluate(`import("/assets/chart.js").then(({ Chart }) => {
			const c = new Chart({ title: "one", names: ["P50"], unit: " ms" });
			[NaN, 12, NaN].forEach((v, i) => c.add(1000 * i, { P50: v }));
			document.getElementById("charts").append(c.figure);
			window.one = c.figure;
			return parseFloat(getComputedStyle(c.figure.querySelector("path.dot")).strokeWidth);
		})`, &width, waits),
		chromedp.Evaluate(`window.one.querySelector(".key").textContent`, &key),
		chromedp.WaitReady("body"), shoot("dashboard-one.png"),
	)
	if err != nil || width < 5 || key != "one reading of P50: 12 ms" {
		t.Errorf("a dot of %v pixels and %q; %v; %v", width, key, err, complaints())
	}
}

// A person opens the page: charts move under load, the playground answers, the catalog is listed,
// in light and dark and on a phone, by mouse and by keyboard, without an error on the console.
func TestDashboard(t *testing.T) {
	var out bytes.Buffer
	r := startDemo(t, &out)
	ctx, complaints := browser(t, r.http)
	defer loadDemo(t, r.http)()

	patient := chromedp.WithPollingTimeout(0) // until the browser's context ends
	moving := `[...document.querySelectorAll("figure")].filter(f => f.querySelector("path.line, path.area")).length`
	var charts int
	dark := func(scheme string) chromedp.Action {
		return emulation.SetEmulatedMedia().WithFeatures(
			[]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}})
	}
	err := chromedp.Run(ctx,
		chromedp.EmulateViewport(1280, 900), dark("light"),
		chromedp.Navigate(r.http+"/"),
		chromedp.Poll(moving+` >= 6`, nil, patient),
		chromedp.Poll(`document.querySelector("#state").textContent === "ready"`, nil, patient),
		chromedp.Sleep(4*time.Second), // for charts that people can see
		chromedp.Evaluate(moving, &charts),
		shoot("dashboard-live.png"),
	)
	if err != nil {
		t.Fatalf("live: %v (%d charts move; %v)", err, charts, complaints())
	}
	for _, model := range []string{"shop", "shop-hstu"} {
		tellStory(ctx, t, model)
	}
	var title string
	var rows, boxes int
	answered := func(side string) string { return fmt.Sprintf(`[data-side=%s] .answer tbody tr`, side) }
	err = chromedp.Run(ctx,
		chromedp.Focus("#tab-live"), chromedp.KeyEvent(kb.ArrowRight), // to the playground
		chromedp.WaitVisible("[data-side=A] form button"),
		chromedp.Poll(`document.querySelectorAll("#history li").length > 0`, nil, patient),
		chromedp.Click("[data-side=A] form button"),
		chromedp.WaitVisible(answered("A")),
		chromedp.SetValue(`[data-side=B] select[name=op]`, "recommend"),
		chromedp.Evaluate(`document.querySelector("[data-side=B] select[name=op]").dispatchEvent(new Event("change"))`, nil),
		chromedp.Click("[data-side=B] form button"),
		chromedp.WaitVisible(answered("B")),
		chromedp.Evaluate(fmt.Sprintf(`document.querySelectorAll("%s").length`, answered("B")), &rows),
		chromedp.Evaluate(`document.querySelectorAll("[data-side=A] .strip rect").length`, &boxes),
		chromedp.Text("#history summary", &title),
		picture("dashboard-playground.png", 1000), chromedp.EmulateViewport(1280, 900),
		dark("dark"), shoot("dashboard-playground.png"),
	)
	if err != nil {
		t.Fatalf("playground: %v; %v", err, complaints())
	}
	if rows == 0 || boxes < 2 || !strings.HasPrefix(title, "History:") {
		t.Errorf("the playground shows %d generated items, %d parts of a prompt and %q", rows, boxes, title)
	}
	var text, cut string
	var wide bool
	err = chromedp.Run(ctx,
		chromedp.Click("#tab-catalog"), chromedp.WaitVisible("#catalog-body table"),
		chromedp.Text("#catalog-body", &text),
		chromedp.Evaluate(
			`[...document.querySelectorAll("#catalog-body .scroll")].filter(e => e.scrollWidth > e.clientWidth).`+
				`map(e => e.textContent).join()`, &cut),
		dark("light"), shoot("dashboard-catalog.png"),
		chromedp.EmulateViewport(390, 800), chromedp.Click("#tab-live"),
		chromedp.Evaluate(`document.documentElement.scrollWidth > document.documentElement.clientWidth`, &wide),
		shoot("dashboard-phone.png"),
	)
	if err != nil {
		t.Fatalf("catalog: %v; %v", err, complaints())
	}
	if cut != "" || !strings.Contains(text, "9,540") {
		t.Errorf("tables that have no room: %q; the catalog says %q, want 9,540 items", cut, text)
	}
	if !strings.Contains(text, "items") || wide {
		t.Errorf("the catalog says %q; wider than a phone: %v", text, wide)
	}
	if c := complaints(); len(c) > 0 {
		t.Errorf("the browser complains:\n%s", strings.Join(c, "\n"))
	}
}
