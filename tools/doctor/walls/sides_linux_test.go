package walls

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// serveDeaf is a server that accepts and never reads. For each byte of standard input it says
// on how many connections how many bytes wait.
func serveDeaf(port int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Bind(fd, loopback(port))
	}
	if err == nil {
		err = unix.Listen(fd, 1<<16-1)
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
			if err := writeUnreadByConn(conns); err != nil {
				return err
			}
		case err := <-failed:
			return err
		}
	}
}

// writeUnreadByConn writes on how many connections how many bytes wait.
func writeUnreadByConn(conns []int) error {
	waiting := make(map[int]int)
	for _, conn := range conns {
		n, err := unix.IoctlGetInt(conn, unix.SIOCINQ)
		if err != nil {
			return err
		}
		waiting[n]++
	}
	return json.NewEncoder(os.Stdout).Encode(waiting)
}

// unreadSender is a client that makes connections and, when it is told by a byte of standard
// input, sends Bytes bytes on each, one after the other, as far as the kernel takes
// them. It holds the connections.
type unreadSender struct{ Port, Conns, Bytes int }

func (c *unreadSender) connectAndSend() error {
	conns := make([]int, c.Conns)
	for i := range conns {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, loopback(c.Port))
		}
		if err == nil {
			// A reset at the end leaves nothing behind.
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

func loopback(port int) unix.Sockaddr {
	return &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: port}
}
