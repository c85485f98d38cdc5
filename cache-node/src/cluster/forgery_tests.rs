//! A whole cluster, and somebody who has its key and no certificate, and speaks in a node's name.

use super::*;

/// Promise: a node in whose name a holder of the key speaks, of this life or of a later one, serves again for everybody within
/// seconds, above what was forged; and is heard as before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgeries_are_outlived() {
    let nodes = Nodes::start(3).await;
    nodes.together().await;
    let chains = Chains::new(nodes.keys.clone(), CLUSTER_ID, nodes.keys.read().expect("keys"));
    let socket = std::net::UdpSocket::bind(ANY).expect("socket");
    let at = socket.local_addr().expect("address");
    let (met, _met) = mpsc::channel(1);
    let seal = Seal::new(chains.gossip, "n1", 7).expect("seal");
    let lane = Lane::new(socket, at, seal, nodes.net.clone(), Arc::default(), met).expect("lane");
    let forger = gossip::Gossip::start(Arc::new(lane), "n1", CLUSTER_ID, 7, Arc::default()).await.expect("gossip");
    let hours = |row: &NodeRow, hours: u64| row.incarnation + hours * 3_600_000;
    type Forge<'a> = &'a dyn Fn(NodeRow) -> NodeRow;
    let cases: [(&str, Forge<'_>); 5] = [
        ("gone, above what it said", &|row| NodeRow { version: row.version + 1000, state: 3, ..row }),
        ("gone, where it said that it serves", &|row| NodeRow { state: 3, ..row }),
        ("gone, of a later life", &|row| NodeRow { incarnation: hours(&row, 1), state: 3, ..row }),
        ("serving, of a later life, at its own address", &|row| NodeRow { incarnation: hours(&row, 1), ..row }),
        ("of a life after all others", &|row| NodeRow { incarnation: 1 << 53, state: 3, ..row }),
    ];
    for (name, forge) in cases {
        let before = nodes.nodes[1].row();
        let forged = forge(before.clone());
        let beyond = if forged.incarnation == 1 << 53 { before.incarnation - 1 } else { forged.incarnation };
        forger.say(&rumour::row_to_text(&forged).expect("sound"), "").await;
        // The first contact is answered with a greeting alone.
        for _ in 0..4 {
            nodes.nodes.iter().for_each(|node| forger.contact(node.gossip_address()));
            sleep(Duration::from_millis(250)).await;
        }
        until(9, name, || {
            let row = nodes.nodes[1].row();
            row.incarnation > beyond
                && nodes.agree(&[0, 1, 2], &[0, 1, 2])
                && nodes.nodes.iter().all(|node| view(node).node("n1") == Some(&row) && row.state == 1)
        })
        .await;
    }
    nodes.nodes[1].set_weight(300).await;
    let weighs = |index: usize| view(&nodes.nodes[index]).node("n1").is_some_and(|row| row.weight == 300);
    until(3, "it is heard", || (0..3).all(weighs)).await;
    forger.close().await;
}
