package hub

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

// successorAddr is the environment variable that makes this test binary run a hub that takes over, until its
// standard input ends.
const successorAddr = "MYRIAD_TEST_HUB"

func TestMain(m *testing.M) {
	addr := os.Getenv(successorAddr)
	if addr == "" {
		os.Exit(m.Run())
	}
	h := &Hub{Users: mustReadUsers(usersOfSuccessor), Replay: &Replay{Topics: []string{"kept"}}, Compression: true}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	srv := &tcp.Server{Addr: addr, Handler: h.Handler()}
	if err := srv.ListenAndServe(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const usersOfSuccessor = "user default on nopass +@all &*\nuser ann on >secret +@all &news* &n?\nuser gone on >secret2 +@all &*\n"

// serveUpgradableHub serves a hub with one more user than its successor. upgrade starts the successor and expects
// it to take over that many connections.
func serveUpgradableHub(t *testing.T) (addr string, upgrade func(connections int)) {
	t.Helper()
	h := &Hub{Users: mustReadUsers(usersOfSuccessor + "user former on >secret3 +@all &*\n"), Replay: &Replay{Topics: []string{"kept"}}, Compression: true}
	srv := &tcp.Server{Handler: h.Handler()}
	stdin, stop, err := os.Pipe()
	testkit.RequireNoError(t, err)
	srv.Successor = func() (*exec.Cmd, error) {
		cmd := exec.Command(os.Args[0])
		cmd.Stdin, cmd.Stderr = stdin, os.Stderr
		cmd.Env = append(os.Environ(), successorAddr+"="+srv.Addr, "GORACE=atexit_sleep_ms=0")
		return cmd, nil
	}
	addr, _ = testserver.Start(t, srv)
	return addr, func(connections int) {
		t.Helper()
		u, err := srv.Upgrade(context.Background())
		if err != nil || u.Moved != connections {
			t.Fatalf("Upgrade: %+v, %v; want %d connections moved", u, err, connections)
		}
		stdin.Close()
		t.Cleanup(func() {
			stop.Close()
			testkit.WaitFor(t, "the successor is left", func() bool {
				stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", u.PID))
				return err != nil || strings.Contains(string(stat), ") Z ")
			})
		})
	}
}

// TestRedisClientsMigrate checks that subscribers keep subscriptions, user, name and half a command in an
// upgrade, and that clients whose user is gone are closed.
func TestRedisClientsMigrate(t *testing.T) {
	addr, upgrade := serveUpgradableHub(t)
	clients := map[string]*testkit.Conn{}
	for _, c := range []struct{ name, says, want string }{
		{"ann", "HELLO 3 AUTH ann secret SETNAME a-name\r\nCLIENT SETINFO LIB-NAME a-lib\r\nSUBSCRIBE news\r\nPSUBSCRIBE n?\r\nPING\r\n", "+PONG"},
		{"second", "SUBSCRIBE news\r\nSUBSCRIBE other\r\nSSUBSCRIBE part\r\nPING x\r\n", "$1\r\nx"},
		{"former", "AUTH former secret3\r\nSUBSCRIBE news\r\nPING x\r\n", "$1\r\nx"},
		{"idle", "PING\r\n", "+PONG"},
		{"half", "PING\r\n*2\r\n$4\r\nEC", "+PONG"},
	} {
		clients[c.name] = dialAndSend(t, addr, c.says)
		expectLine(t, clients[c.name], c.want)
	}
	upgrade(len(clients))
	if _, err := io.ReadAll(clients["former"].R); err != nil {
		t.Errorf("a client whose user is gone: %v, want the end", err)
	}
	clients["half"].Send("HO\r\n$3\r\nyes\r\n")
	expectLine(t, clients["half"], "$3\r\nyes")
	clients["idle"].Send("PUBLISH news hello\r\nPUBLISH nx pattern\r\nSPUBLISH part shard\r\nPUBSUB NUMSUB other\r\n")
	expectLine(t, clients["idle"], ":2\r\n:1\r\n:1\r\n*2\r\n$5\r\nother\r\n:1")
	expectLine(t, clients["ann"], ">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$5\r\nhello\r\n>4\r\n$8\r\npmessage\r\n$2\r\nn?\r\n$2\r\nnx\r\n$7\r\npattern")
	expectLine(t, clients["second"], "*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$5\r\nhello\r\n*3\r\n$8\r\nsmessage\r\n$4\r\npart\r\n$5\r\nshard")
	clients["ann"].Send("CLIENT INFO\r\n")
	expectLine(t, clients["ann"], "lib-name=a-lib lib-ver=\n")
	clients["ann"].Send("CLIENT GETNAME\r\nUNSUBSCRIBE news\r\nPUBSUB NUMSUB news\r\n")
	expectLine(t, clients["ann"], "$6\r\na-name")
	expectLine(t, clients["ann"], "*2\r\n$4\r\nnews\r\n:1")
}

// TestHTTPClientsMigrate upgrades a hub with WebSockets, event streams and an idle HTTP connection.
func TestHTTPClientsMigrate(t *testing.T) {
	addr, upgrade := serveUpgradableHub(t)
	ann, former, mistaken := dialWebSocket(t, addr, "?token=secret"), dialWebSocket(t, addr, "?token=secret3"), dialWebSocket(t, addr, "")
	ann.exchange(`{"op":"subscribe","topic":"news"}`, `{"op":"subscribed","topic":"news","count":1}`)
	ann.exchange(`{"op":"subscribe","pattern":"n?"}`, `{"op":"subscribed","pattern":"n?","count":2}`)
	former.exchange(`{"op":"subscribe","topic":"news"}`, `{"op":"subscribed","topic":"news","count":1}`)
	for range maxBadRequests - 1 {
		mistaken.sendText(`{}`)
		mistaken.Read(mistaken.ctx)
	}
	stream := dialAndSend(t, addr, "GET /events?topic=news&pattern=n?&token=secret HTTP/1.1\r\nHost: localhost\r\n\r\n")
	ended := dialAndSend(t, addr, "GET /events?topic=news&token=secret3 HTTP/1.1\r\nHost: localhost\r\n\r\n")
	expectUpTo(t, stream, "retry: ")
	expectUpTo(t, ended, "retry: ")
	keptAlive := dialAndSend(t, addr, "GET /topics/news HTTP/1.1\r\nHost: localhost\r\n\r\n")
	expectUpTo(t, keptAlive, `{"topic":"news","subscribers":4}`)
	upgrade(6)
	former.expectClose(websocket.StatusPolicyViolation)
	if _, err := io.ReadAll(ended.R); err != nil {
		t.Errorf("a stream whose user is gone: %v, want the end", err)
	}
	keptAlive.Send("GET /topics/news HTTP/1.1\r\nHost: localhost\r\n\r\n")
	expectUpTo(t, keptAlive, `{"topic":"news","subscribers":2}`)
	large := strings.Repeat("x", 2000) // compressed for ann
	for _, topic := range []string{"news", "nx"} {
		expectResponse(t, http.StatusOK, `{"receivers":2}`, "POST", "http://"+addr+"/publish?topic="+topic, large+" to "+topic)
	}
	ann.expectText(`{"op":"message","topic":"news","data":"` + large + ` to news"}`)
	expectUpTo(t, stream, `{"op":"message","topic":"news","data":"`+large+` to news"}`)
	ann.expectText(`{"op":"message","pattern":"n?","topic":"nx","data":"` + large + ` to nx"}`)
	expectUpTo(t, stream, ` to nx"}`)
	ann.exchange(`{"op":"unsubscribe","topic":"news"}`, `{"op":"unsubscribed","topic":"news","count":1}`)
	ann.sendText(`{"op":"subscribe","topic":"other"}`) // not allowed for ann
	ann.expectText(`{"op":"error","error":"no permission"}`)
	mistaken.sendText(`{}`)
	mistaken.Read(mistaken.ctx)
	mistaken.expectClose(websocket.StatusPolicyViolation)
}

// TestKeptMessagesMigrate upgrades a hub that keeps messages: ids continue, and a client that reconnects gets what it
// missed before and after the upgrade.
func TestKeptMessagesMigrate(t *testing.T) {
	addr, upgrade := serveUpgradableHub(t)
	publish := func(message string) {
		t.Helper()
		expectResponse(t, http.StatusOK, `"receivers":`, "POST", "http://"+addr+"/publish?topic=kept", message)
	}
	p, s := dialWebSocket(t, addr, ""), openEvents(t, addr, "topic=kept", "")
	p.sendText(`{"op":"subscribe","topic":"kept"}`)
	_, text, err := p.Read(p.ctx)
	_, epoch, _ := strings.Cut(strings.TrimSuffix(string(text), `-0"}`), `"since":"`)
	if err != nil || epoch == "" {
		t.Fatalf("%s, %v; expected a position", text, err)
	}
	s.expectEvents(t, "id: "+epoch+"-0")
	message := func(n int) string {
		return fmt.Sprintf(`{"op":"message","id":"%s-%d","topic":"kept","data":"%[2]d"}`, epoch, n)
	}
	event := func(n int) string { return fmt.Sprintf("id: %s-%d data: %s", epoch, n, message(n)) }
	for n := 1; n <= 4; n++ {
		if publish(fmt.Sprint(n)); n == 2 {
			upgrade(2)
		}
		p.expectText(message(n))
		s.expectEvents(t, event(n))
	}
	openEvents(t, addr, "topic=kept", epoch+"-1").expectEvents(t, event(2), event(3), event(4), "id: "+epoch+"-4")
	p.exchange(`{"op":"subscribe","pattern":"kep?","since":"`+epoch+`-0"}`, `{"op":"subscribed"*`)
	for n := 1; n <= 4; n++ {
		p.expectText(strings.Replace(message(n), `"topic"`, `"pattern":"kep?","topic"`, 1))
	}
}
