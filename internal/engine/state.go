package engine

// This file is where a connection's state is: the bits of Conn.state, which are the
// core's. Finish and Abandon clear all of them.
//
//	bit              meaning                                           set by             cleared by
//	open             established, not finished                         Open
//	outbound         we dialled                                        Open
//	registered       counted among the connections of its source       Open, SetPeer
//	ownHandler       user is an Owned                                  SetOwned
//	greeting         layers are at work: Opened is not called yet      Open, Upgrade      Greeted
//	openPending      Opened is to be called by a worker                Open, Greeted      Deliver
//	inCall           its handler is being called for it                each call          its return
//	silent           the peer has sent nothing yet                     Open, Greeted      Arrived
//	inputHeld        input waits for a worker, for output to drain     Arrived, Deliver   Deliver
//	                 or for Listen: not for more input
//	readPaused       the handler, or a relay, wants no input           Listen, Relay      Listen
//	overHighWater    more is unsent than HighWater, and has not        Write              Sent
//	                 been down to LowWater since
//	blocked          the kernel has taken less than it was given       Sent, Offered      Sent, Room
//	drainedPending   Drained is to be called                           Sent               Deliver
//	drainingPending  Draining is to be called                          Drain              Deliver
//	draining         to be closed at the next idle moment              Drain
//	readBeforeClose  to be read from before it is closed for           Expire, Drain      Empty, Arrived
//	                 silence or a drain
//	relayed          joined with another connection                    Relay
//	peerEnded        the peer sends no more                            PeerClosed
//	endDelivered     the handler, or a partner, knows that             Deliver            Relay
//	closingWrite     our direction is to be shut when all is sent      CloseWrite
//	yielded          it has had its turn; what it holds waits for      Yield              TakeTurn, Deliver
//	                 the next one
//	closing          no more input is offered; more says why           CloseWith
//	shut             our direction is shut                             ShutDone
//	failed           the transport is of no more use: close at once    Abort, Failed
//
// Above them is counted how many heartbeats the peer has left unanswered, up to 255.
//
// Beside them there are Conn.Armed, whose bits belong to the driver and to package loop,
// which has a table of them, and Host.OnWorkers: whether workers call the handler. While Armed
// has loop.Busy the connection is with a worker, and so are the bits here.
const (
	open uint32 = 1 << iota
	outbound
	registered
	ownHandler
	greeting
	openPending
	inCall
	silent
	inputHeld
	readPaused
	overHighWater
	blocked
	drainedPending
	drainingPending
	draining
	readBeforeClose
	relayed
	peerEnded
	endDelivered
	closingWrite
	closing
	shut
	failed
	yielded

	missed    = 1 << 24 // one heartbeat
	allMissed = 0xff * missed
)

func (c *Conn) is(bits uint32) bool { return c.state&bits != 0 }
