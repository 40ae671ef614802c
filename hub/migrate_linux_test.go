package hub

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/internal/await"
)

// successorAddr is the variable by which a process of this test is a hub that takes another's
// place, until its standard input ends.
const successorAddr = "MYRIAD_TEST_HUB"

func TestMain(m *testing.M) {
	addr := os.Getenv(successorAddr)
	if addr == "" {
		os.Exit(m.Run())
	}
	h := &Hub{Users: readUsers(usersOfSuccessor)}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	srv := &myriad.Server{Addr: addr, Handler: h.Handler()}
	if err := srv.ListenAndServe(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const usersOfSuccessor = "user default on nopass +@all &*\nuser ann on >secret +@all &news* &n?\nuser gone on >secret2 +@all &*\n"

func readUsers(text string) *Users {
	u, err := ReadUsers(strings.NewReader(text))
	if err != nil {
		panic(err)
	}
	return u
}

// TestMigrates upgrades a hub: subscribers keep their subscriptions, patterns, user and name, and
// half a command. One whose user is gone is closed.
func TestMigrates(t *testing.T) {
	h := &Hub{Users: readUsers(usersOfSuccessor + "user former on >secret3 +@all &*\n")}
	srv := &myriad.Server{Handler: h.Handler()}
	stdin, stop, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stop.Close()
	srv.Successor = func() (*exec.Cmd, error) {
		cmd := exec.Command(os.Args[0])
		cmd.Stdin, cmd.Stderr = stdin, os.Stderr
		cmd.Env = append(os.Environ(), successorAddr+"="+srv.Addr, "GORACE=atexit_sleep_ms=0")
		return cmd, nil
	}
	addr, _ := Serve(t, srv)
	clients := map[string]*bufio.Reader{}
	conns := map[string]net.Conn{}
	for _, c := range []struct{ name, says, want string }{
		{"ann", "HELLO 3 AUTH ann secret SETNAME a-name\r\nSUBSCRIBE news\r\nPSUBSCRIBE n?\r\nPING\r\n", "+PONG"},
		{"second", "SUBSCRIBE news\r\nSUBSCRIBE other\r\nSSUBSCRIBE part\r\nPING x\r\n", "$1\r\nx"},
		{"former", "AUTH former secret3\r\nSUBSCRIBE news\r\nPING x\r\n", "$1\r\nx"},
		{"idle", "PING\r\n", "+PONG"},
		{"half", "PING\r\n*2\r\n$4\r\nEC", "+PONG"},
	} {
		nc, err := net.DialTimeout("tcp", addr, await.Patience)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		_ = nc.SetDeadline(time.Now().Add(2 * await.Patience))
		conns[c.name], clients[c.name] = nc, bufio.NewReader(nc)
		fmt.Fprint(nc, c.says)
		until(t, clients[c.name], c.want)
	}
	u, err := srv.Upgrade(context.Background())
	if err != nil || u.Moved != len(conns) {
		t.Fatalf("Upgrade: %+v, %v; want %d connections moved", u, err, len(conns))
	}
	stdin.Close()
	if _, err := io.ReadAll(clients["former"]); err != nil {
		t.Errorf("a client whose user is gone: %v, want the end", err)
	}
	fmt.Fprint(conns["half"], "HO\r\n$3\r\nyes\r\n")
	until(t, clients["half"], "$3\r\nyes")
	fmt.Fprint(conns["idle"], "PUBLISH news hello\r\nPUBLISH nx pattern\r\nSPUBLISH part shard\r\nPUBSUB NUMSUB other\r\n")
	until(t, clients["idle"], ":2\r\n:1\r\n:1\r\n*2\r\n$5\r\nother\r\n:1")
	until(t, clients["ann"], ">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$5\r\nhello\r\n>4\r\n$8\r\npmessage\r\n$2\r\nn?\r\n$2\r\nnx\r\n$7\r\npattern")
	until(t, clients["second"], "*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$5\r\nhello\r\n*3\r\n$8\r\nsmessage\r\n$4\r\npart\r\n$5\r\nshard")
	fmt.Fprint(conns["ann"], "CLIENT GETNAME\r\nUNSUBSCRIBE news\r\nPUBSUB NUMSUB news\r\n")
	until(t, clients["ann"], "$6\r\na-name")
	until(t, clients["ann"], "*2\r\n$4\r\nnews\r\n:1")
	stop.Close()
	await.True(t, "the successor is left", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", u.PID))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

// until reads up to what is wanted.
func until(t *testing.T, in *bufio.Reader, want string) {
	t.Helper()
	var got []byte
	for !strings.HasSuffix(string(got), want+"\r\n") {
		b, err := in.ReadByte()
		if err != nil {
			t.Fatalf("got %q, then %v; want %q", got, err, want)
		}
		got = append(got, b)
	}
}

// TestState has states refused that are cut off, or of another version.
func TestState(t *testing.T) {
	good := []byte{stateVersion, byte(resp3), 1, 0, 3, 'a', 'n', 'n', 0}
	h := &Hub{Users: readUsers(usersOfSuccessor)}
	for n := 1; n < len(good); n++ {
		if err := (handler{hub: h}).Restore(nil, good[:n:n]); err == nil {
			t.Errorf("a state of %d of its %d bytes is taken", n, len(good))
		}
	}
	for _, wrong := range []int{0, 1} {
		bad := append([]byte(nil), good...)
		bad[wrong] = 99
		if err := (handler{hub: h}).Restore(nil, bad); err == nil {
			t.Errorf("a state with byte %d wrong is taken", wrong)
		}
	}
}
