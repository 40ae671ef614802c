package browser

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/myriad-go/myriad/internal/testkit"
)

// One browser serves all tests: TestMain starts it, ends it and waits for its end. Each
// test has a tab of its own, which remembers nothing of others.
var browser context.Context

var why string // there is no browser

// built is where programs are built; see start.
var built string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if built, err = os.MkdirTemp("", "browser"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(built)
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		why = "there is no Chromium; install Debian's package chromium"
		return m.Run()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 9*time.Minute)
	defer cancel()
	ctx, end := chromedp.NewContext(ctx, chromedp.WithAllocatorOptions(chromedp.ExecPath(path), chromedp.WSURLReadTimeout(time.Minute)))
	defer end()
	if err := chromedp.Do(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "Chromium does not start:", err)
		return 1
	}
	browser = ctx
	code := m.Run()
	if err := chromedp.Cancel(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "Chromium does not end:", err)
		return 1
	}
	return code
}

// tab is a page of the browser, and all that it asked for and complained about.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	requests   []string
	complaints []string
}

// open opens an address and waits until the page's script has begun.
func open(t *testing.T, url string, before ...chromedp.Action[chromedp.Void]) *tab {
	t.Helper()
	b := visit(t, url, before...)
	b.until(`document.documentElement.dataset.ready === "yes"`)
	return b
}

func visit(t *testing.T, url string, before ...chromedp.Action[chromedp.Void]) *tab {
	t.Helper()
	if browser == nil {
		t.Skip(why)
	}
	b := &tab{t: t}
	b.ctx, _ = chromedp.NewContext(browser, chromedp.WithNewBrowserContext(), chromedp.WithListener(b.hear))
	var cancel context.CancelFunc
	b.ctx, cancel = context.WithTimeout(b.ctx, 3*time.Minute)
	t.Cleanup(func() {
		if err := chromedp.Cancel(b.ctx); err != nil {
			t.Error("the tab does not close:", err)
		}
		cancel()
	})
	b.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, network.Enable, network.EnableParams{})
		return err
	}))
	b.do(before...)
	b.do(chromedp.Navigate(url))
	return b
}

func (b *tab) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	case *runtime.EventExceptionThrown:
		b.complaints = append(b.complaints, "exception: "+e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		b.complaints = append(b.complaints, fmt.Sprintf("console.%s", e.Type))
	case *log.EventEntryAdded:
		b.complaints = append(b.complaints, fmt.Sprintf("%s: %s", e.Entry.Source, e.Entry.Text))
	}
}

// quiet fails the test if the page has asked anybody but its server for something until now, or has
// complained of anything that an exception does not name.
func (b *tab) quiet(server string, exceptions ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.requests {
		if !strings.HasPrefix(r, server) && !strings.HasPrefix(r, "data:") {
			b.t.Errorf("it asked for %q", r)
		}
	}
	for _, c := range b.complaints {
		if !slices.ContainsFunc(exceptions, func(e string) bool { return strings.Contains(c, e) }) {
			b.t.Errorf("it complains: %q", c)
		}
	}
}

func media(scheme string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	})
}

// press clicks on a button, and write types a text, \r being Enter.
func (b *tab) press(selector string) {
	b.t.Helper()
	eval[bool](b, fmt.Sprintf(`document.querySelector(%q).click(), true`, selector))
}

func (b *tab) write(selector, text string) {
	b.t.Helper()
	b.do(chromedp.SendKeys(chromedp.CSS(selector), text))
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	testkit.RequireNoError(b.t, chromedp.Do(b.ctx, steps...))
}

// until waits for an expression to be true, which it has to be within a minute.
func (b *tab) until(expression string) {
	b.t.Helper()
	if _, err := chromedp.Run(b.ctx, chromedp.Poll[bool](expression, chromedp.WithPollingTimeout(time.Minute), chromedp.WithPollingInterval(20*time.Millisecond))); err != nil {
		b.t.Fatalf("%s never came true: %v", expression, err)
	}
}

// eval is the value of an expression in the page.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return v
}
