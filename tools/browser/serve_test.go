package browser

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
)

const liveToken = "0123456789abcdef"

// liveServer is a myriad serve with its page.
type liveServer struct{ addr, admin string }

// programs are those that the tests run, each built once.
var programs = map[string]func() (string, error){
	"./tools/myriad":     sync.OnceValues(func() (string, error) { return build("./tools/myriad") }),
	"./examples/webchat": sync.OnceValues(func() (string, error) { return build("./examples/webchat") }),
}

func build(command string) (string, error) { return testserver.Build(built, "../..", command) }

// start starts a program that is killed when the test ends.
func start(t *testing.T, command string, args ...string) *testkit.Process {
	t.Helper()
	program, err := programs[command]()
	testkit.RequireNoError(t, err)
	return testkit.Start(t, exec.Command(program, args...))
}

// startLive starts a server, which ends with the test.
func startLive(t *testing.T, admin string) liveServer {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "token")
	testkit.RequireNoError(t, os.WriteFile(secret, []byte(liveToken), 0o600))
	p := start(t, "./tools/myriad", "serve", "--app", "lines", "--addr", "127.0.0.1:0", "--admin", admin,
		"--admin-control", "--admin-token-file", secret)
	return liveServer{p.WaitForOutput(`serving.* on (\S+)`)[1], p.WaitForOutput(`metrics.* on (\S+)\n`)[1]}
}

// allow uses a button, of which the operator says yes and gives the token.
func (b *tab) allow(button string) {
	eval[bool](b, "window.confirm = () => true; true")
	b.press(button)
	b.do(chromedp.WaitVisible("dialog input"))
	b.write("dialog input", liveToken+"\r")
}

// TestUpgradeFromPage has the operator upgrade the server: the page says what has come of it, and
// follows the new process.
func TestUpgradeFromPage(t *testing.T) {
	l, err := net.Listen("tcp", fmt.Sprintf("127.9.%d.%d:0", os.Getpid()>>8&255, os.Getpid()&255)) // nobody else's
	testkit.RequireNoError(t, err)
	l.Close()
	s := startLive(t, l.Addr().String())
	const n = 5
	s.talk(t, n)
	p := open(t, s.admin)
	p.until(fact("Connections") + fmt.Sprintf(`.startsWith("%d of ")`, n))
	p.allow(`button[data-post="control/upgrade"]`)
	p.until(fmt.Sprintf(`document.getElementById("_said").textContent.match(/^process \d+ has taken over with %d connections in .*; 0 are lost$/) !== null`, n))
	next, err := os.FindProcess(eval[int](p, `parseInt(document.getElementById("_said").textContent.split(" ")[1])`))
	testkit.RequireNoError(t, err)
	t.Cleanup(func() { next.Kill() })
	p.until(`document.getElementById("_state").textContent.startsWith("live")`)
	p.until(fact("Connections") + fmt.Sprintf(`.startsWith("%d of ")`, n))
	if stats := s.stats(t); stats.TakenOver != n {
		t.Errorf("the process at the page's address has taken over %d connections, want %d", stats.TakenOver, n)
	}
}

// talk has a number of connections send a line every few milliseconds, until the test
// ends.
func (s liveServer) talk(t *testing.T, n int) {
	t.Helper()
	var talking sync.WaitGroup
	t.Cleanup(talking.Wait)
	for range n {
		c := testkit.Dial(t, s.addr)
		talking.Go(func() {
			for range time.Tick(20 * time.Millisecond) {
				if _, err := io.WriteString(c.Conn, "ping\n"); err != nil {
					return
				}
				if _, err := io.ReadFull(c.R, make([]byte, 5)); err != nil {
					return
				}
			}
		})
	}
}

// fact is a script that reads a fact at the top of the page.
func fact(name string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(".facts div")].find((d) => d.querySelector("dt").textContent === %q).querySelector("dd").textContent`, name)
}

// stats asks the server itself.
func (s liveServer) stats(t *testing.T) (stats struct {
	Open, Accepted, Messages, TakenOver int64
	AcceptingPaused                     bool
}) {
	t.Helper()
	answer, err := http.Get(s.admin + "stats")
	testkit.RequireNoError(t, err)
	defer answer.Body.Close()
	testkit.RequireNoError(t, json.NewDecoder(answer.Body).Decode(&stats))
	return stats
}

// drawnCharts is how many charts have something in their canvas.
const drawnCharts = `[...myriadPage.charts.values()].filter((c) => {
	const canvas = c.plot.ctx.canvas, copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
	copy.drawImage(canvas, 0, 0);
	const data = copy.getImageData(0, 0, canvas.width, canvas.height).data;
	return c.plot.data[0].length > 2 && data.some((v, i) => i % 4 === 3 && v > 0);
}).length`

// TestLivePage opens the page of a server that serves, sees it move and agree with the
// server, and has the operator pause it, close a connection and drain it.
func TestLivePage(t *testing.T) {
	s := startLive(t, "127.0.0.1:0")
	const n = 20
	s.talk(t, n)
	p := open(t, s.admin)
	p.until(drawnCharts + " === 6")
	if !eval[bool](p, `document.getElementById("_state").textContent.startsWith("live") && getComputedStyle(document.getElementById("_state")).position === "static"`) {
		t.Error("the state of the page has no label, or lies over the page")
	}
	if !eval[bool](p, `(({ series }) => series[1].dash === undefined && series[2].dash.length === 2)(myriadPage.charts.get("bytes").plot)`) {
		t.Error("where the curves of what is received and sent coincide one is not seen")
	}
	p.until(fact("Connections") + fmt.Sprintf(`.startsWith("%d of ")`, n))
	p.until(fact("Messages") + `.match(/^[1-9][0-9,.]* a second$/) !== null`)
	if open := s.stats(t).Open; open != n {
		t.Errorf("the server has %d connections open, the page %d", open, n)
	}
	total := `Number([...document.querySelectorAll("#figures tr")].find((r) => r.cells[0].textContent === "messages_total").cells[1].textContent.replaceAll(",", ""))`
	before := eval[float64](p, total)
	p.until(fmt.Sprintf("%s > %v", total, before))
	shown := eval[float64](p, total)
	if high := s.stats(t).Messages; shown <= before || shown > float64(high) {
		t.Errorf("the page has %v messages, after %v and before the server's %d", shown, before, high)
	}
	points := `myriadPage.charts.get("connections").plot.data[0].length`
	was := eval[float64](p, points)
	p.until(fmt.Sprintf("%s > %v", points, was))
	p.until(`document.querySelectorAll("#walls tbody tr").length > 3 && document.querySelectorAll("#talkers tbody tr").length === 15`)
	p.control(s, n)
	p.quiet(s.admin)
}

// control uses the buttons.
func (p *tab) control(s liveServer, n int) {
	p.allow(`button[data-post="control/pause"]`)
	p.until(`document.querySelector("header .lead").textContent.includes("Accepting is paused")`)
	if !s.stats(p.t).AcceptingPaused {
		p.t.Error("the page says that accepting is paused, and the server that it is not")
	}
	testkit.Dial(p.t, s.addr)
	p.press(`button[data-post="control/resume"]`) // the token is asked for once
	p.until(fact("Connections") + fmt.Sprintf(`.startsWith("%d of ")`, n+1))
	p.press(`#talkers button[data-post^="control/close"]`)
	p.until(fact("Connections") + fmt.Sprintf(`.startsWith("%d of ")`, n))
	if eval[bool](p, fmt.Sprintf("JSON.stringify({ ...localStorage, ...sessionStorage }).includes(%q) || document.documentElement.outerHTML.includes(%q)", liveToken, liveToken)) {
		p.t.Error("the token is kept where others can read it")
	}
}
