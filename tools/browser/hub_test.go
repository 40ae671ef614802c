package browser

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

// serveHub serves a hub at an address until stop is called, or the test ends.
func serveHub(t *testing.T, model, at string, h *hub.Hub) (addr string, stop func()) {
	t.Helper()
	return testserver.Start(t, &tcp.Server{Addr: at, Model: model, Handler: h.Handler()})
}

// subscribe has a page of a hub subscribe, and waits until it has.
func (b *tab) subscribe(kind, name string) {
	b.t.Helper()
	n := eval[string](b, `document.querySelector("#subscriptions").textContent`)
	eval[bool](b, fmt.Sprintf(`document.querySelector("#kind").value = %q, true`, kind))
	b.write("#name", name+"\r")
	b.until(fmt.Sprintf(`document.querySelector("#subscriptions").textContent !== %q`, n))
}

// write types a text, \r being Enter.
func (b *tab) write(selector, text string) {
	b.t.Helper()
	b.do(chromedp.SendKeys(chromedp.CSS(selector), text))
}

// press clicks on a button.
func (b *tab) press(selector string) {
	b.t.Helper()
	eval[bool](b, fmt.Sprintf(`document.querySelector(%q).click(), true`, selector))
}

// newest waits until the newest message of a page of a hub is a topic's with a text.
func (b *tab) newest(topic, text string) {
	b.t.Helper()
	b.until(fmt.Sprintf(`(() => { const row = document.querySelector("#list tr"); return row && row.children[0].textContent === %q && row.children[2].textContent === %q; })()`, topic, text))
}

// TestHub has pages of a hub publish and receive, messages come from elsewhere, and the pages
// come back when the server does.
func TestHub(t *testing.T) {
	for _, model := range append(tcp.Models(), tcp.Auto) {
		t.Run(model, func(t *testing.T) {
			h := &hub.Hub{}
			addr, stop := serveHub(t, model, "127.0.0.1:0", h)
			url := "http://" + addr + "/"
			one, two := open(t, url), open(t, url)
			for _, b := range []*tab{one, two} {
				b.until(`document.documentElement.dataset.state === "open"`)
			}
			one.subscribe("topic", "news")
			two.subscribe("pattern", "n?ws*")

			const bad = `<img src=x onerror="window.harmed=true"><script>window.harmed=true</script>`
			two.write("#to", "news")
			two.write("#message", "hello, all")
			two.press("#publish button")
			one.newest("news", "hello, all")
			two.newest("news", "hello, all")
			two.until(`document.querySelector("#_said").textContent === "on its way to 2"`)
			two.write("#message", bad)
			two.press("#publish button")
			for _, b := range []*tab{one, two} {
				b.newest("news", bad)
				if eval[bool](b, `window.harmed === true || document.querySelector("#list img, #list script") !== null`) {
					t.Error("a message is more than text")
				}
			}
			if n, err := h.Publish("news<b>", []byte("\xff")); n != 1 || err != nil {
				t.Errorf("published to %d, %v", n, err)
			}
			two.newest("news<b>", "base64: /w==")
			nc, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(nc, "PUBLISH news \"by a client of Redis\"\r\n")
			if line, err := bufio.NewReader(nc).ReadString('\n'); line != ":2\r\n" {
				t.Errorf("PUBLISH was answered with %q, %v", line, err)
			}
			nc.Close()
			one.newest("news", "by a client of Redis")

			two.until(`document.querySelector("#listed tr")?.textContent.startsWith("news1") === true`)
			two.press(`#listed button`)
			one.until(`document.querySelector("#listed tr")?.textContent.startsWith("news2") === true`)
			two.press(`#subscribed button[aria-label="Unsubscribe from topic news"]`)
			one.until(`document.querySelector("#listed tr")?.textContent.startsWith("news1") === true`)

			stop()
			for _, b := range []*tab{one, two} {
				b.until(`document.documentElement.dataset.state === "lost"`)
			}
			serveHub(t, model, addr, h)
			for _, b := range []*tab{one, two} {
				b.until(`document.documentElement.dataset.state === "open" && document.querySelector("#subscriptions").textContent === "1"`)
			}
			if n, err := h.Publish("news", []byte("we are back")); n != 2 || err != nil {
				t.Errorf("published to %d, %v", n, err)
			}
			one.newest("news", "we are back")
			two.newest("news", "we are back")
		})
	}
}

// TestHubPage has the list of messages bounded, paused and cleared, and the page ask nobody but
// its server, in light and dark.
func TestHubPage(t *testing.T) {
	h := &hub.Hub{}
	addr, _ := serveHub(t, tcp.Auto, "127.0.0.1:0", h)
	url := "http://" + addr + "/"
	b := open(t, url)
	b.until(`document.documentElement.dataset.state === "open"`)
	b.subscribe("topic", "a")
	publish := func(n int, text string) {
		t.Helper()
		for i := range n {
			if n, err := h.Publish("a", fmt.Appendf(nil, "%s %d", text, i)); n != 1 || err != nil {
				t.Fatalf("published to %d, %v", n, err)
			}
		}
	}
	rows := func(n int) {
		t.Helper()
		b.until(fmt.Sprintf(`document.querySelectorAll("#list tr").length === %d`, n))
	}
	publish(700, "many")
	b.newest("a", "many 699")
	rows(500)
	if last := eval[string](b, `document.querySelector("#list tr:last-child td:last-child").textContent`); last != "many 200" {
		t.Errorf("the oldest is %q", last)
	}
	b.until(`document.querySelector("#received").textContent === "700"`)
	b.press("#pause")
	publish(3, "unseen")
	b.until(`document.querySelector("#shown").textContent === "paused; 3 not shown"`)
	b.press("#clear")
	rows(0)
	b.press("#pause")
	publish(1, strings.Repeat("x", 3000))
	b.until(`document.querySelector("#list td:last-child")?.textContent.endsWith("x… (3,002 characters)") === true`)
	b.press("#leave")
	b.until(`document.querySelector("#state").textContent === "disconnected"`)
	testkit.WaitFor(t, "the page is still subscribed", func() bool { n, _ := h.Publish("a", nil); return n == 0 })
	b.press("#go")
	b.until(`document.documentElement.dataset.state === "open" && document.querySelector("#subscriptions").textContent === "1"`)

	if unnamed := eval[[]string](b, `[...document.querySelectorAll("input, select, textarea")].filter((e) => e.labels.length === 0).map((e) => e.id)`); len(unnamed) > 0 {
		t.Errorf("without a label: %q", unnamed)
	}
	if unnamed := eval[int](b, `[...document.querySelectorAll("button")].filter((e) => !(e.textContent.trim() || e.getAttribute("aria-label"))).length`); unnamed > 0 {
		t.Errorf("%d buttons have no name", unnamed)
	}
	if wide := eval[bool](b, `document.documentElement.scrollWidth > innerWidth`); wide {
		t.Error("the page is wider than its window")
	}
	light := eval[string](b, `getComputedStyle(document.body).backgroundColor`)
	b.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}})
		return err
	}))
	b.until(fmt.Sprintf(`getComputedStyle(document.body).backgroundColor !== %q`, light))
	requests, complaints := b.heard()
	if i := slices.IndexFunc(requests, func(r string) bool { return !strings.HasPrefix(r, url) && !strings.HasPrefix(r, "data:") }); i >= 0 {
		t.Errorf("it asked for %q", requests[i])
	}
	if len(complaints) > 0 {
		t.Errorf("it complains: %q", complaints)
	}
}

// TestHubToken has a page say who its reader is, and tell of a wrong token.
func TestHubToken(t *testing.T) {
	users, err := hub.ReadUsers(strings.NewReader("user default off\nuser ann on >secret +@pubsub &a*\n"))
	if err != nil {
		t.Fatal(err)
	}
	h := &hub.Hub{Users: users}
	addr, _ := serveHub(t, tcp.Auto, "127.0.0.1:0", h)
	b := open(t, "http://"+addr+"/")
	b.until(`document.querySelector("#unlisted").textContent.includes("has not said who it is")`)
	b.write("#token", "wrong\r")
	b.until(`document.documentElement.dataset.state === "lost" && document.querySelector("#state").textContent.includes("wrong user name or password")`)
	eval[bool](b, `document.querySelector("#token").value = "", true`)
	b.write("#token", "secret\r")
	b.until(`document.querySelector("#state").textContent === "connected as ann"`)
	b.subscribe("topic", "ab")
	b.until(`document.querySelector("#total").textContent === "1" && document.querySelector("#unlisted").textContent === ""`)
	b.write("#name", "b\r")
	b.until(`document.querySelector("#_said").textContent === "no permission" && document.querySelectorAll("#subscribed li").length === 1`)
}
