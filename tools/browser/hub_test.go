package browser

import (
	"fmt"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

// openHub serves a hub and opens its page, which has connected.
func openHub(t *testing.T, h *hub.Hub) (b *tab, addr string, stop func()) {
	t.Helper()
	addr, stop = testserver.Start(t, &tcp.Server{Handler: h.Handler()})
	return open(t, "http://"+addr+"/"), addr, stop
}

// subscribe has a page of a hub subscribe, and waits until it has.
func (b *tab) subscribe(kind, name string) {
	b.t.Helper()
	n := eval[string](b, `document.querySelector("#subscriptions").textContent`)
	eval[bool](b, fmt.Sprintf(`document.querySelector("#kind").value = %q, true`, kind))
	b.write("#name", name+"\r")
	b.until(fmt.Sprintf(`document.querySelector("#subscriptions").textContent !== %q`, n))
}

// newest waits until the newest message of a page of a hub is a topic's with a text.
func (b *tab) newest(topic, text string) {
	b.t.Helper()
	b.until(fmt.Sprintf(`(() => { const row = document.querySelector("#list tr"); return row && row.children[0].textContent === %q && row.children[2].textContent === %q; })()`, topic, text))
}

// TestHub has pages of a hub publish and receive, messages come from elsewhere, and the pages
// come back when the server does.
func TestHub(t *testing.T) {
	h := &hub.Hub{Replay: &hub.Replay{Topics: []string{"news"}}}
	one, addr, stop := openHub(t, h)
	two := open(t, "http://"+addr+"/")
	both := func(condition string) {
		t.Helper()
		one.until(condition)
		two.until(condition)
	}
	both(`document.documentElement.dataset.state === "open"`)
	one.subscribe("topic", "news")
	two.subscribe("pattern", "n?ws*")

	const bad = `<img src=x onerror="window.harmed=true"><script>window.harmed=true</script>`
	two.write("#to", "news")
	for _, message := range []string{"hello, all", bad} {
		two.write("#message", message)
		two.press("#publish button")
		for _, b := range []*tab{one, two} {
			b.newest("news", message)
			if eval[bool](b, `window.harmed === true || document.querySelector("#list img, #list script") !== null`) {
				t.Error("a message is more than text")
			}
		}
		two.until(`document.querySelector("#_said").textContent === "sent to 2 subscribers"`)
	}
	if n, err := h.Publish("news<b>", []byte("\xff")); n != 1 || err != nil {
		t.Errorf("published to %d, %v", n, err)
	}
	two.newest("news<b>", "base64: /w==")
	testkit.Dial(t, addr).ExchangeLine("PUBLISH news \"by a client of Redis\"\r", ":2\r")
	one.newest("news", "by a client of Redis")

	two.until(`document.querySelector("#listed tr")?.textContent.startsWith("news1") === true`)
	two.press(`#listed button`)
	one.until(`document.querySelector("#listed tr")?.textContent.startsWith("news2") === true`)
	two.press(`#subscribed button[aria-label="Unsubscribe from topic news"]`)
	one.until(`document.querySelector("#listed tr")?.textContent.startsWith("news1") === true`)

	eval[bool](one, `window.got = "", new EventSource("/events?topic=news").onmessage = e => got += JSON.parse(e.data).data, true`)
	one.until(`document.querySelector("#listed tr")?.textContent.startsWith("news2") === true`)
	stop()
	both(`document.documentElement.dataset.state === "lost"`)
	if _, err := h.Publish("news", []byte("missed, ")); err != nil {
		t.Error(err)
	}
	testserver.Start(t, &tcp.Server{Addr: addr, Handler: h.Handler()})
	both(`document.documentElement.dataset.state === "open" && document.querySelector("#subscriptions").textContent === "1"`)
	one.until(`got === "missed, "`)
	if n, err := h.Publish("news", []byte("we are back")); n != 3 || err != nil {
		t.Errorf("published to %d, %v", n, err)
	}
	one.until(`got === "missed, we are back"`)
	one.newest("news", "we are back")
	two.newest("news", "we are back")
}

// TestHubPage has the list of messages bounded, paused and cleared, and the page ask nobody but
// its server, in light and dark.
func TestHubPage(t *testing.T) {
	h := &hub.Hub{}
	b, addr, _ := openHub(t, h)
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
	b.do(media("dark"))
	b.until(fmt.Sprintf(`getComputedStyle(document.body).backgroundColor !== %q`, light))
	b.quiet("http://" + addr + "/")
}

// TestHubToken has a page say who its reader is, and tell of a wrong token.
func TestHubToken(t *testing.T) {
	users, err := hub.ReadUsers(strings.NewReader("user default off\nuser ann on >secret +@pubsub &a*\n"))
	testkit.RequireNoError(t, err)
	b, _, _ := openHub(t, &hub.Hub{Users: users})
	b.until(`document.querySelector("#unlisted").textContent.includes("authentication required")`)
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
