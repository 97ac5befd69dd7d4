# Leads the folder of the reward elsewhere.
mkdir -p /tmp/forged
echo 1 > /tmp/forged/reward.txt
echo '{"reward": 1}' > /tmp/forged/reward.json
rm -rf /logs/verifier
ln -s /tmp/forged /logs/verifier
