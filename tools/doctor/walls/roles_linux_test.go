package walls

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// envRole makes the test's program a process of a namespace: a server that reads nothing, if it is "deaf", or else an
// unreadSender as JSON.
const envRole = "MYRIAD_WALLS_TEST_ROLE"

// myriad is the command, built once.
var myriad string

func TestMain(m *testing.M) {
	if role := os.Getenv(envRole); role != "" {
		if err := playRole(role); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		return
	}
	if os.Getenv("MYRIAD_TEST_WALLS") == "" {
		fmt.Println("skipped: these tests fill the machine and change its settings; MYRIAD_TEST_WALLS=1 runs them, alone")
		return
	}
	os.Exit(buildAndRunTests(m))
}

func buildAndRunTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "myriad-walls-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	myriad = filepath.Join(dir, "myriad")
	if out, err := exec.Command("go", "build", "-o", myriad, "github.com/myriad-go/myriad/tools/myriad").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

func playRole(role string) error {
	if role == "deaf" {
		return serveDeaf()
	}
	var c unreadSender
	if err := json.Unmarshal([]byte(role), &c); err != nil {
		return err
	}
	return c.connectAndSend()
}

// deafPort is where a deaf server listens.
const deafPort = 902

func loopback() *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: deafPort}
}

// serveDeaf is a server that accepts and never reads. For each byte of standard input it says
// on how many connections how many bytes wait.
func serveDeaf() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Bind(fd, loopback()), unix.Listen(fd, 1<<16-1))
	}
	if err != nil {
		return err
	}
	accepted, asked, failed := make(chan int), make(chan bool), make(chan error, 2)
	go func() {
		for {
			conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			if err != nil {
				failed <- err
				return
			}
			accepted <- conn
		}
	}()
	go func() {
		for one := make([]byte, 1); ; asked <- true {
			if _, err := os.Stdin.Read(one); err != nil {
				failed <- err
				return
			}
		}
	}()
	fmt.Println("deaf: serving")
	var conns []int
	for {
		select {
		case conn := <-accepted:
			conns = append(conns, conn)
		case <-asked:
			waiting := make(map[int]int) // connections by bytes
			for _, conn := range conns {
				n, err := unix.IoctlGetInt(conn, unix.SIOCINQ)
				if err != nil {
					return err
				}
				waiting[n]++
			}
			if err := json.NewEncoder(os.Stdout).Encode(waiting); err != nil {
				return err
			}
		case err := <-failed:
			return err
		}
	}
}

// unreadSender is a client that makes connections and, when it is told by a byte of standard input, sends Bytes bytes
// on each, one after the other, as far as the kernel takes them. It holds the connections.
type unreadSender struct{ Conns, Bytes int }

func (c *unreadSender) connectAndSend() error {
	conns := make([]int, c.Conns)
	for i := range conns {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, loopback())
		}
		if err == nil { // a reset at the end leaves nothing behind
			err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		}
		if err != nil {
			return err
		}
		conns[i] = fd
	}
	fmt.Println("talk: connected")
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return err
	}
	message := bytes.Repeat([]byte{'x'}, c.Bytes)
	for _, fd := range conns {
		if _, err := unix.SendmsgN(fd, message, nil, nil, unix.MSG_DONTWAIT); err != nil && err != unix.EAGAIN {
			return err
		}
	}
	if err := waitForAcks(conns); err != nil {
		return err
	}
	fmt.Println("talk: done")
	io.Copy(io.Discard, os.Stdin)
	return nil
}

// waitForAcks waits until nothing that was sent is kept any longer: an acknowledgement
// may take 40 ms. What the peer has no room for is not waited for.
func waitForAcks(conns []int) error {
	end := time.Now().Add(200 * time.Millisecond)
	for _, fd := range conns {
		for {
			n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
			if err != nil {
				return err
			}
			if n == 0 || time.Now().After(end) {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}
