package hub_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/tcp"
)

// A hub embedded in a program that also publishes.
func Example() {
	h := &hub.Hub{Limits: hub.Limits{LastValues: 1000}}
	listening := make(chan net.Addr, 1)
	srv := &tcp.Server{Addr: "127.0.0.1:0", Handler: h.Handler(), Listening: func(a net.Addr) { listening <- a }}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- srv.ListenAndServe(ctx) }()

	receivers, err := h.Publish("weather", []byte("sunny"))
	fmt.Println("receivers:", receivers, err)

	c, err := net.Dial("tcp", (<-listening).String())
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _ = io.WriteString(c, "SUBSCRIBE weather\r\n")
	lines := bufio.NewScanner(c)
	for n := 0; n < 13 && lines.Scan(); n++ {
		fmt.Println(lines.Text())
	}
	c.Close()
	cancel()
	fmt.Println(<-ended)
	// Output:
	// receivers: 0 <nil>
	// *3
	// $9
	// subscribe
	// $7
	// weather
	// :1
	// *3
	// $7
	// message
	// $7
	// weather
	// $5
	// sunny
	// <nil>
}
